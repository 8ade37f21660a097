// 16 lanes on AVX-512 (F, BW, VL, DQ, VNNI). Included once per translation unit, inside an anonymous namespace.
// Needs <immintrin.h>, <cstdint>.

struct vf {
  __m512 v;
};
struct vi {
  __m512i v;
};

inline vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
inline vf set1(float a) { return {_mm512_set1_ps(a)}; }
inline vf zero() { return {_mm512_setzero_ps()}; }
inline vf operator+(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
inline vf operator-(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline vf operator*(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline vf operator/(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
inline vf fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// NaN in `a` gives b.
inline vf max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }
inline vf min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
// a < b ? x : y per lane
inline vf select_less(vf a, vf b, vf x, vf y) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)}; }

inline vi to_int(vf a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest even
inline vf to_float(vi a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline vi bits(vf a) { return {_mm512_castps_si512(a.v)}; }
inline vf from_bits(vi a) { return {_mm512_castsi512_ps(a.v)}; }
inline vi iset1(int32_t a) { return {_mm512_set1_epi32(a)}; }
inline vi izero() { return {_mm512_setzero_si512()}; }
inline vi operator+(vi a, vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline vi operator&(vi a, vi b) { return {_mm512_and_si512(a.v, b.v)}; }
inline vi imax(vi a, vi b) { return {_mm512_max_epi32(a.v, b.v)}; }
// Sum of the lanes, in the order that all instruction sets have: halves onto each other until one lane is left.
inline float sum_lanes(vf a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lanes(vf a) {
  const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
// Lane r is the fold of the lanes of rows[r], in the order of sum_lanes; lanes from R on hold some row's. At most 8 rows.
template <int R, typename Op>
inline vf fold_rows(const vf* rows, Op op) {
  __m512 x[8];
  TRIVIUM_UNROLL for (int r = 0; r < 8; r++) x[r] = rows[r < R ? r : R - 1].v;
  TRIVIUM_UNROLL for (int r = 0; r < 4; r++) {
    x[r] = op(_mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0x44), _mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0xee));
  }
  TRIVIUM_UNROLL for (int r = 0; r < 2; r++) {
    x[r] = op(_mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0x88), _mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0xdd));
  }
  const __m512 halves = op(_mm512_shuffle_ps(x[0], x[1], 0x44), _mm512_shuffle_ps(x[0], x[1], 0xee));
  const __m512 whole = op(halves, _mm512_permute_ps(halves, 0xb1));
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0), whole)};
}
template <int R>
inline vf sum_rows(const vf* rows) {
  return fold_rows<R>(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}
template <int R>
inline vf max_rows(const vf* rows) {
  return fold_rows<R>(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}
inline vf nearest(vf a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// p * 2^n for a whole n, 0 if it is less than `low`.
inline vf times_power(vf p, vf n, vf low) {
  return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n.v, low.v, _CMP_NLT_UQ), p.v, n.v)};
}
inline int32_t reduce_max(vi a) { return _mm512_reduce_max_epi32(a.v); }
inline int32_t reduce_add(vi a) { return _mm512_reduce_add_epi32(a.v); }
inline vi shift_left_23(vi a) { return {_mm512_slli_epi32(a.v, 23)}; }
inline vi iota() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
inline void istore(int32_t* p, vi a) { _mm512_storeu_si512(p, a.v); }
// a < b ? x : y per lane, on integers
inline vf select_iless(vi a, vi b, vf x, vf y) { return {_mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(a.v, b.v), y.v, x.v)}; }

inline vf load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline void store_f16(uint16_t* p, vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline vf load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline vf load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
// Saturated to int8 / int16, 16 values.
inline void store_int8(int8_t* p, vi a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v)); }
inline void store_int16(int16_t* p, vi a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a.v)); }

// 16 pairs of int8 or int16, as int16: a pair per lane.
struct vpairs {
  __m512i v;
};
inline vpairs load_pairs(const int8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline vpairs load_pairs(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
// One pair of int16, in every lane.
inline __m512i set1_pair(const int16_t* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return _mm512_set1_epi32(x);
}
// c + a[0] * b[0] + a[1] * b[1] per lane
inline vi dot_pairs(vpairs a, __m512i b, vi c) {
  c.v = _mm512_dpwssd_epi32(c.v, a.v, b);
  asm("" : "+v"(c.v));  // in the register it is in: GCC would move it to another one and back
  return c;
}

// From 4 rows on a tile has 2 groups of 16 outputs: a broadcast activation is used twice, which halves the loads that otherwise bound the
// loop. With 8 rows float sums spend a block's products in the first-level cache, which costs less than unpacking weights more often.
constexpr int kNarrowRows = 3;
constexpr int kWideRows = 8;
constexpr int kWideGroups = 2;
constexpr bool kFloatSums = true;  // whether sums of products with int8 start at kFloatBase
struct Expansion {  // see matmul.inl
  static constexpr bool kPays = false;
};
// Query rows per tile, and how many vectors of keys or values they share.
constexpr int kAttentionRows = 6;
constexpr int kBesideLines = 0;  // see matmul.inl
constexpr int attention_width(int) { return 4; }

// Integer dot products of one block: 32 weights of G groups of 16 output rows, `step` bytes apart, with 32 activations of R rows.

inline __m512i broadcast(const void* p) { return _mm512_set1_epi32(*static_cast<const int32_t*>(p)); }

template <int R, int G>
inline void dot_w4a8(const uint8_t* codes, int64_t step, const int8_t* q, int64_t stride, vi (*sum)[G]) {
  const __m512i mask = _mm512_set1_epi8(15);
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_set1_epi32(kFloatBaseBits);
  }
  TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
    __m512i low[G], high[G];
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
      const __m512i c = _mm512_loadu_si512(codes + g * step + 64 * j);
      low[g] = _mm512_and_si512(c, mask);
      high[g] = _mm512_and_si512(_mm512_srli_epi16(c, 4), mask);
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      const __m512i x = broadcast(q + r * stride + 8 * j), y = broadcast(q + r * stride + 8 * j + 4);
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_dpbusd_epi32(sum[r][g].v, low[g], x);
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_dpbusd_epi32(sum[r][g].v, high[g], y);
    }
  }
}

// Codes of 8 bits in fours, for int8 activations: per row the bytes of columns 4t to 4t + 3, plus 128.
struct Fours {
  static constexpr bool kHave = true;

  // Four t from pairs 2t and 2t + 1 (matrix.h), 64 bytes.
  static void store(uint8_t* to, const void* pairs) {
    const __m512i rows = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18,
                                          2, 17, 1, 16, 0);
    const __m512i order = _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200);
    const __m512i four = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(rows, _mm512_loadu_si512(pairs)), order);
    _mm512_storeu_si512(to, _mm512_xor_si512(four, _mm512_set1_epi8(-128)));
  }

  // With `Count` fours. `biases`, `bias_stride` from row to row, make up for the 128.
  template <int R, int G, int Count>
  static void dot(const uint8_t* codes, int64_t step, const int8_t* q, int64_t stride, const int32_t* biases, int64_t bias_stride,
                  vi (*sum)[G]) {
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = broadcast(biases + r * bias_stride);
    }
    TRIVIUM_UNROLL for (int t = 0; t < Count; t++) {
      __m512i w[G];
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) w[g] = _mm512_loadu_si512(codes + g * step + 64 * t);
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const __m512i x = broadcast(q + r * stride + 4 * t);
        TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_dpbusd_epi32(sum[r][g].v, w[g], x);
      }
    }
  }
};

template <int R, int G>
inline void dot_w4a16(const uint8_t* codes, int64_t step, const int16_t* q, int64_t stride, vi (*sum)[G]) {
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i even = _mm512_set1_epi16(255);
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_setzero_si512();
  }
  TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
      const __m512i c = _mm512_loadu_si512(codes + g * step + 64 * j);
      const __m512i low = _mm512_and_si512(c, mask);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(c, 4), mask);
      const __m512i parts[4] = {_mm512_and_si512(low, even), _mm512_srli_epi16(low, 8), _mm512_and_si512(high, even),
                                _mm512_srli_epi16(high, 8)};
      TRIVIUM_UNROLL for (int t = 0; t < 4; t++) {
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          sum[r][g].v = _mm512_dpwssd_epi32(sum[r][g].v, parts[t], broadcast(q + r * stride + 8 * j + 2 * t));
        }
      }
    }
  }
}

// `pairs` of weights from `codes`, 32 bytes each; a multiple of 4. Four at a time: what a loop costs shows.
template <int R, int G>
inline void dot_w8a16(const uint8_t* codes, int64_t step, const int16_t* q, int64_t stride, int pairs, vi (*sum)[G]) {
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_setzero_si512();
  }
  for (int begin = 0; begin < pairs; begin += 4) {
    TRIVIUM_UNROLL for (int t = begin; t < begin + 4; t++) {
      __m512i w[G];
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
        w[g] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + g * step + 32 * t)));
      }
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const __m512i x = broadcast(q + r * stride + 2 * t);
        TRIVIUM_UNROLL for (int g = 0; g < G; g++) sum[r][g].v = _mm512_dpwssd_epi32(sum[r][g].v, w[g], x);
      }
    }
  }
}
