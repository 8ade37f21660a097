// Element-wise kernels on 16-lane vectors. Included in each instruction set's translation unit, inside its anonymous namespace.

// e^x with a relative error of about 2^-23 on [-86.6, 88.7]; 0 below. Cody and Waite's reduction, then a polynomial of degree 6
// (Cephes expf's coefficients).
inline vf exp_lanes(vf x) {
  const vf low = set1(-86.6f);
  const vf clamped = min(max(x, low), set1(88.72283f));
  const vi n = to_int(clamped * set1(1.44269504088896341f));
  const vf nf = to_float(n);
  vf r = fma(nf, set1(-0.693359375f), clamped);
  r = fma(nf, set1(2.12194440e-4f), r);
  vf p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  // 2^n in two steps: n may be 128, whose power of two is not a float.
  const vf half_power = from_bits(shift_left_23(n + iset1(126)));
  return select_less(x, low, zero(), p * half_power * set1(2.0f));
}

// x becomes 2^x, for N vectors of x <= 0, with a relative error of about 2^-22.5; 0 below -126. Vectors go side by side, since each alone would
// wait for its products.
template <int N>
inline void exp2_vectors(vf* x) {
  constexpr float kCoefficients[] = {9.671512991e-3f, 5.550733581e-2f, 2.402224243e-1f, 6.931470037e-1f, 1.0f};
  vf n[N], p[N];  // minimax on [-0.5, 0.5] with p(0) = 1
  TRIVIUM_UNROLL for (int i = 0; i < N; i++) n[i] = nearest(x[i]);
  TRIVIUM_UNROLL for (int i = 0; i < N; i++) x[i] = x[i] - n[i];
  TRIVIUM_UNROLL for (int i = 0; i < N; i++) p[i] = set1(1.326472615e-3f);
  TRIVIUM_UNROLL for (int k = 0; k < 5; k++) {
    TRIVIUM_UNROLL for (int i = 0; i < N; i++) p[i] = fma(p[i], x[i], set1(kCoefficients[k]));
  }
  TRIVIUM_UNROLL for (int i = 0; i < N; i++) x[i] = times_power(p[i], n[i], set1(-126.0f));
}

inline vf exp2_lanes(vf x) {
  exp2_vectors<1>(&x);
  return x;
}

inline vf load_tail(const float* p, int64_t n, float fill) {
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? p[i] : fill;
  return load(t);
}

inline void store_tail(float* p, vf a, int64_t n) {
  float t[16];
  store(t, a);
  for (int64_t i = 0; i < n; i++) p[i] = t[i];
}

void rms_norm(float* out, const float* x, const float* weight, int64_t n, float eps) {
  vf s[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; k++) {
      const vf v = load(x + i + 16 * k);
      s[k] = fma(v, v, s[k]);
    }
  }
  for (; i < n; i += 16) {
    const vf v = n - i >= 16 ? load(x + i) : load_tail(x + i, n - i, 0.0f);
    s[0] = fma(v, v, s[0]);
  }
  const float mean = sum_lanes((s[0] + s[1]) + (s[2] + s[3])) / static_cast<float>(n);
  const vf scale = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (i = 0; i + 16 <= n; i += 16) store(out + i, load(x + i) * scale * load(weight + i));
  if (i < n) store_tail(out + i, load_tail(x + i, n - i, 0.0f) * scale * load_tail(weight + i, n - i, 0.0f), n - i);
}

// g * sigmoid(g), with e^-|g|, which cannot overflow.
inline vf silu(vf g) {
  const vf magnitude = from_bits(bits(g) & iset1(0x7fffffff)), one = set1(1.0f);
  const vf e = exp2_lanes(magnitude * set1(-1.44269504f));
  return g * select_less(g, zero(), e, one) / (one + e);
}

void silu_mul(float* out, const float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, silu(load(gate + i)) * load(up + i));
  if (i < n) store_tail(out + i, silu(load_tail(gate + i, n - i, 0.0f)) * load_tail(up + i, n - i, 0.0f), n - i);
}

void axpy(float* y, float a, const float* x, int64_t n) {
  const vf av = set1(a);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, fma(av, load(x + i), load(y + i)));
  if (i < n) store_tail(y + i, fma(av, load_tail(x + i, n - i, 0.0f), load_tail(y + i, n - i, 0.0f)), n - i);
}

void rope(float* x, const float* cosines, const float* sines, int rotary_dim, int head_dim, bool interleaved, float scale) {
  const int half = rotary_dim / 2;
  if (interleaved) {
    for (int i = 0; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = (a * cosines[i] - b * sines[i]) * scale;
      x[2 * i + 1] = (b * cosines[i] + a * sines[i]) * scale;
    }
  } else {
    int i = 0;
    const vf sv = set1(scale);
    for (; i + 16 <= half; i += 16) {
      const vf a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
      store(x + i, (a * c - b * s) * sv);
      store(x + half + i, (b * c + a * s) * sv);
    }
    for (; i < half; i++) {
      const float a = x[i], b = x[half + i];
      x[i] = (a * cosines[i] - b * sines[i]) * scale;
      x[half + i] = (b * cosines[i] + a * sines[i]) * scale;
    }
  }
  for (int i = rotary_dim; i < head_dim; i++) x[i] *= scale;
}

// Largest magnitude of a block, as bits: infinities and NaN stay visible.
inline float block_amax(vf a, vf b) {
  const vi magnitude = iset1(0x7fffffff);
  const int32_t largest = reduce_max(imax(bits(a) & magnitude, bits(b) & magnitude));
  float out;
  std::memcpy(&out, &largest, sizeof out);
  return out;
}

inline void load_block(const float* x, int64_t left, vf* a, vf* b) {
  if (left >= kBlock) {
    *a = load(x);
    *b = load(x + 16);
  } else {
    *a = left >= 16 ? load(x) : load_tail(x, left, 0.0f);
    *b = left > 16 ? load_tail(x + 16, left - 16, 0.0f) : zero();
  }
}

// With 22 bits, so that kFloatBase * scale is exact.
inline float short_scale(float scale) {
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  bits &= ~3u;
  std::memcpy(&scale, &bits, sizeof bits);
  return scale;
}

void quantize_int8(const float* x, int64_t n, int8_t* q, float* scales, float* sums, float* offsets, int32_t* biases) {
  constexpr int32_t kStart = kFloatSums ? kFloatBaseBits : 0;
  for (int64_t block = 0; block * kBlock < n; block++) {
    vf a, b;
    load_block(x + block * kBlock, n - block * kBlock, &a, &b);
    const float amax = block_amax(a, b);
    const vf inverse = set1(amax > 0.0f ? 127.0f / amax : 0.0f);
    const vi qa = to_int(a * inverse), qb = to_int(b * inverse);
    store_int8(q + block * kBlock, qa);
    store_int8(q + block * kBlock + 16, qb);
    scales[block] = short_scale(amax / 127.0f);
    offsets[block] = -kFloatBase * scales[block];
    const int32_t sum = reduce_add(qa + qb);
    sums[block] = scales[block] * static_cast<float>(sum);
    if (biases == nullptr) continue;
    const int32_t first = reduce_add(qa);
    biases[3 * block] = kStart - 128 * sum;
    biases[3 * block + 1] = kStart - 128 * first;
    biases[3 * block + 2] = kStart - 128 * (sum - first);
  }
}

// 16 values, each four in the order 0, 2, 1, 3 of ActivationView. Word by word, each load would wait for the store before it.
inline void store_fours(int16_t* out, vi values) {
  typedef uint64_t Fours64 __attribute__((vector_size(32)));
  constexpr uint64_t kSecond = 0xffffull << 16, kThird = 0xffffull << 32;
  int16_t t[16];
  store_int16(t, values);
  Fours64 fours;
  std::memcpy(&fours, t, sizeof fours);
  fours = (fours & ~(kSecond | kThird)) | (fours >> 16 & kSecond) | (fours << 16 & kThird);
  std::memcpy(out, &fours, sizeof fours);
}

void quantize_int16(const float* x, int64_t n, int16_t* q, float* scales, float* sums) {
  for (int64_t block = 0; block * kBlock < n; block++) {
    vf a, b;
    load_block(x + block * kBlock, n - block * kBlock, &a, &b);
    const float amax = block_amax(a, b);
    const vf inverse = set1(amax > 0.0f ? 32767.0f / amax : 0.0f);
    const vi qa = to_int(a * inverse), qb = to_int(b * inverse);
    store_fours(q + block * kBlock, qa);
    store_fours(q + block * kBlock + 16, qb);
    scales[block] = amax / 32767.0f;
    sums[block] = scales[block] * static_cast<float>(reduce_add(qa + qb));
  }
}

// out[i * stride] = x[i] as float16.
void store_f16_row(uint16_t* out, const float* x, int64_t n, int64_t stride) {
  const vf low = set1(-65504.0f), high = set1(65504.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const vf v = min(max(n - i >= 16 ? load(x + i) : load_tail(x + i, n - i, 0.0f), low), high);
    if (stride == 1 && n - i >= 16) {
      store_f16(out + i, v);
    } else {
      uint16_t t[16];
      store_f16(t, v);
      for (int64_t k = 0; k < 16 && i + k < n; k++) out[(i + k) * stride] = t[k];
    }
  }
}

// Largest magnitude of x, as bits: infinities and NaN stay visible.
inline float row_amax(const float* x, int64_t n) {
  const vi magnitude = iset1(0x7fffffff);
  vi largest = izero();
  for (int64_t i = 0; i < n; i += 16) {
    const vf v = n - i >= 16 ? load(x + i) : load_tail(x + i, n - i, 0.0f);
    largest = imax(largest, bits(v) & magnitude);
  }
  const int32_t found = reduce_max(largest);
  float out;
  std::memcpy(&out, &found, sizeof out);
  return out;
}

// limit / amax, and 0 where that would not be a float: what is this small counts as nothing.
constexpr float kSmallest = 1e-30f;
inline float inverse_scale(float amax, float limit) { return amax > kSmallest ? limit / amax : 0.0f; }

// q = x / scale, `limit` for the largest magnitude, amax; returns the scale. n is a multiple of 16.
inline float quantize_int16_row(int16_t* q, const float* x, int64_t n, float amax, float limit) {
  const vf inverse = set1(inverse_scale(amax, limit));
  for (int64_t i = 0; i < n; i += 16) store_int16(q + i, to_int(load(x + i) * inverse));
  return amax / limit;
}

inline void store_codes(int8_t* p, vi a) { store_int8(p, a); }
inline void store_codes(int16_t* p, vi a) { store_int16(p, a); }

constexpr float kLargest = 3.0e38f;
inline vf to_finite(vf a) { return min(max(a, set1(-kLargest)), set1(kLargest)); }

// codes[(i / 2) * pair_stride + (i % 2) * stride] = x[i] / scale, `limit` for the largest magnitude, amax; returns the scale, which is
// always finite.
template <typename Code>
inline float spread_codes(Code* codes, const float* x, int64_t n, float amax, float limit, int64_t pair_stride, int64_t stride) {
  const vf inverse = set1(inverse_scale(amax, limit));
  for (int64_t i = 0; i < n; i += 16) {
    Code t[16];
    store_codes(t, to_int(to_finite(n - i >= 16 ? load(x + i) : load_tail(x + i, n - i, 0.0f)) * inverse));
    for (int64_t k = 0; k < 16 && i + k < n; k++) codes[(i + k) / 2 * pair_stride + k % 2 * stride] = t[k];
  }
  return amax / limit;
}

inline float to_finite(float amax) { return amax < kLargest ? amax : kLargest; }
inline float finite_amax(const float* x, int64_t n) { return to_finite(row_amax(x, n)); }

// What the largest magnitude of x may become as int16 so that its products with another such row sum up to less than 2^31, whatever
// their order: by Cauchy and Schwarz if each row is no longer than 2^15.5, less what rounding may add. n is a multiple of 16.
inline float product_limit(const float* x, int64_t n, float amax) {
  const vf inverse = set1(inverse_scale(amax, 1.0f));
  vf squares = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const vf v = to_finite(load(x + i)) * inverse;
    squares = fma(v, v, squares);
  }
  const float length = __builtin_sqrtf(sum_lanes(squares)), most = 46340.0f - __builtin_sqrtf(static_cast<float>(n));
  return most < 32767.0f * length ? most / length : 32767.0f;
}

// Walsh's and Hadamard's matrix of order 16.
struct Hadamard {
  float rows[16][16];
  constexpr Hadamard() : rows() {
    for (int i = 0; i < 16; i++) {
      for (int j = 0; j < 16; j++) {
        const int both = i & j;
        rows[i][j] = (both ^ both >> 1 ^ both >> 2 ^ both >> 3) & 1 ? -1.0f : 1.0f;
      }
    }
  }
};
constexpr Hadamard kHadamard;

template <int V>
inline void spread_vectors(float* out, const float* x) {
  vf sums[V];
  TRIVIUM_UNROLL for (int v = 0; v < V; v++) sums[v] = zero();
  for (int i = 0; i < 16; i++) {
    const vf row = load(kHadamard.rows[i]);
    TRIVIUM_UNROLL for (int v = 0; v < V; v++) sums[v] = fma(set1(x[16 * v + i]), row, sums[v]);
  }
  TRIVIUM_UNROLL for (int v = 0; v < V; v++) store(out + 16 * v, sums[v]);
}

// The head x of n elements times a Hadamard matrix, in parts as large as n is divisible by a power of two; returns that order. A
// key and a query keep their product, but for the order as a factor. What it is for: a few large elements, which some models' keys
// have, would decide the scale of a key's codes and leave the others little of it; spread over the head they do not.
inline int64_t spread_head(float* out, const float* x, int64_t n) {
  int64_t i = 0, order = 16;
  for (; i + 64 <= n; i += 64) spread_vectors<4>(out + i, x + i);
  for (; i < n; i += 16) spread_vectors<1>(out + i, x + i);
  for (; n % (2 * order) == 0; order *= 2) {
    for (int64_t start = 0; start < n; start += 2 * order) {
      for (i = start; i < start + order; i += 16) {
        const vf a = load(out + i), b = load(out + i + order);
        store(out + i, a + b);
        store(out + i + order, a - b);
      }
    }
  }
  return order;
}

// The head x of *n elements, filled up with zeros to a multiple of 16, which *n becomes; in `room` if it is not one.
inline const float* padded_head(float* room, const float* x, int64_t* n) {
  if (*n % 16 == 0) return x;
  const int64_t given = *n;
  *n = (given + 15) / 16 * 16;
  std::memcpy(room, x, static_cast<size_t>(given) * sizeof(float));
  std::memset(room + given, 0, static_cast<size_t>(*n - given) * sizeof(float));
  return room;
}

float store_key_i8(int8_t* codes, const float* key, int64_t n) {
  float room[kMaxHeadDim], spread[kMaxHeadDim];
  const float* padded = padded_head(room, key, &n);
  spread_head(spread, padded, n);
  return spread_codes(codes, spread, n, finite_amax(spread, n), 127.0f, 2 * kSubtile, 1);
}

float store_value_i8(int8_t* codes, const float* value, int64_t n) {
  return spread_codes(codes, value, n, finite_amax(value, n), 127.0f, 4, 2);
}

float quantize_query_i8(int16_t* codes, const float* query, int64_t n) {
  float room[kMaxHeadDim], spread[kMaxHeadDim];
  const float* padded = padded_head(room, query, &n);
  const int64_t order = spread_head(spread, padded, n);
  const int64_t limit = INT32_MAX / (127 * n);  // so that no sum of n products with codes of a key can overflow
  return quantize_int16_row(codes, spread, n, row_amax(spread, n), static_cast<float>(limit < 32767 ? limit : 32767)) /
         static_cast<float>(order);
}

float store_key_i16(int16_t* codes, const float* key, int64_t n) {
  float room[kMaxHeadDim];
  const float* padded = padded_head(room, key, &n);
  const float amax = finite_amax(padded, n);
  return spread_codes(codes, padded, n, amax, product_limit(padded, n, amax), 2 * kSubtile, 1);
}

// 14 bits: of the 32 of a sum, values and weights of 128 keys then err alike.
constexpr float kValueLimit = 8191.0f;
float store_value_i16(int16_t* codes, const float* value, int64_t n) {
  return spread_codes(codes, value, n, finite_amax(value, n), kValueLimit, 4, 2);
}

float quantize_query_i16(int16_t* codes, const float* query, int64_t n) {
  float room[kMaxHeadDim];
  const float* padded = padded_head(room, query, &n);
  const float amax = row_amax(padded, n);
  return quantize_int16_row(codes, padded, n, amax, product_limit(padded, n, to_finite(amax)));
}

float exp_sum(float* out, const float* x, int64_t n, float largest, float scale) {
  const vf m = set1(largest), s = set1(scale);
  vf total[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; k++) {
      const vf e = exp_lanes((load(x + i + 16 * k) - m) * s);
      store(out + i + 16 * k, e);
      total[k] = total[k] + e;
    }
  }
  for (; i < n; i += 16) {
    const int64_t left = n - i;
    const vf e = exp_lanes(((left >= 16 ? load(x + i) : load_tail(x + i, left, -INFINITY)) - m) * s);
    store_tail(out + i, e, left < 16 ? left : 16);
    total[0] = total[0] + e;
  }
  return sum_lanes((total[0] + total[1]) + (total[2] + total[3]));
}

int64_t argmax(const float* x, int64_t n) {
  vf best = set1(-INFINITY);
  vi index = izero(), seen_nan = izero();
  const vi magnitude = iset1(0x7fffffff);
  vi at = iota();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16, at = at + iset1(16)) {
    const vf v = load(x + i);
    seen_nan = imax(seen_nan, bits(v) & magnitude);
    index = bits(select_less(best, v, from_bits(at), from_bits(index)));
    best = select_less(best, v, v, best);
  }
  float values[16];
  int32_t indices[16], nan_bits[16];
  store(values, best);
  istore(indices, index);
  istore(nan_bits, seen_nan);
  int64_t found = -1;
  float top = -INFINITY;
  bool nan = false;
  for (int lane = 0; lane < 16; lane++) {
    nan = nan || nan_bits[lane] > 0x7f800000;
    if (found < 0 || values[lane] > top || (values[lane] == top && indices[lane] < found)) {
      top = values[lane];
      found = indices[lane];
    }
  }
  for (; i < n; i++) {
    nan = nan || x[i] != x[i];
    if (x[i] > top) {
      top = x[i];
      found = i;
    }
  }
  return nan ? -1 : found;
}
