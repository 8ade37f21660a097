// Attention over the paged KV cache. Included in each instruction set's translation unit, inside its anonymous namespace.
//
// Keys lie as [head_dim][16] per 16 positions, so that a lane is a key and q.k needs no horizontal sums; values as [16][head_dim].
// The softmax of each tile of 128 keys, counted from absolute position 0, is computed from the tile's own maximum, and tiles are
// merged in order (Dao et al., FlashAttention, 2022): the same operations for a query in prefill, in decode and with any split.
//
// With codes (int16 or int8), which lie in pairs (kv_cache.h), both products are of integers, and exact: queries are int16
// (quantize_query), and so are a tile's weights, after each took over the scale of its value.
//
// Decoding reads each cache line once, from far away. So a tile's values are fetched while its keys are multiplied, and the next
// tile's keys while its values are summed.

template <typename T>
constexpr bool kCodes = static_cast<T>(-1) < static_cast<T>(0) && sizeof(T) < 4;  // int8_t and int16_t, not floats

inline vf load_kv(const uint16_t* p) { return load_f16(p); }
inline vf load_kv(const float* p) { return load(p); }

struct TileState {
  float scores[kMaxQueries][kTile];
  float max[kMaxQueries];
  float sum[kMaxQueries];
  int16_t weights[kMaxQueries][kTile];  // of codes
  float weight_scales[kMaxQueries];
};

template <typename T>
inline const T* subtile(const AttentionArgs& a, int64_t offset, int key) {
  const int block = key / a.block_size, within = (key % a.block_size) / kSubtile;
  return reinterpret_cast<const T*>(a.cache + a.blocks[block] * a.block_stride + offset + within * a.subtile_bytes);
}

// The 16 scales behind a subtile's codes.
template <typename Code>
inline vf load_scales(const AttentionArgs& a, const Code* codes) {
  return load(reinterpret_cast<const float*>(codes + kSubtile * static_cast<int64_t>(a.head_dim_padded)));
}

// scores[r][slot + 16 keys] for R rows and S neighbouring subtiles.
template <int R, int S, typename T>
void score_floats(const AttentionArgs& a, TileState& t, int row, int slot, const T* const* k, const T* const* v) {
  const float* q = a.q + static_cast<int64_t>(row) * a.head_dim_padded;
  vf acc[R][S];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = zero();
  }
  for (int d = 0; d < a.head_dim_padded; d++) {
    vf kv[S];
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
      kv[s] = load_kv(k[s] + d * kSubtile);
      __builtin_prefetch(v[s] + d * kSubtile);
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      const vf x = set1(q[r * a.head_dim_padded + d]);
      TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = fma(x, kv[s], acc[r][s]);
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) store(&t.scores[row + r][slot + s * kSubtile], acc[r][s]);
  }
}

template <int R, int S, typename Code>
void score_codes(const AttentionArgs& a, TileState& t, int row, int slot, const Code* const* k, const Code* const* v) {
  constexpr int kLine = 64 / sizeof(Code);  // codes of a cache line
  const int16_t* q = a.q_codes + static_cast<int64_t>(row) * a.head_dim_padded;
  vi acc[R][S];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = izero();
  }
  for (int d = 0; d < a.head_dim_padded; d += 4) {
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
      TRIVIUM_UNROLL for (int line = 0; line < 4 * kSubtile; line += kLine) __builtin_prefetch(v[s] + d * kSubtile + line);
    }
    TRIVIUM_UNROLL for (int pair = d; pair < d + 4; pair += 2) {
      vpairs codes[S];
      TRIVIUM_UNROLL for (int s = 0; s < S; s++) codes[s] = load_pairs(k[s] + pair * kSubtile);
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const auto x = set1_pair(q + r * a.head_dim_padded + pair);
        TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = dot_pairs(codes[s], x, acc[r][s]);
      }
    }
  }
  TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
    __builtin_prefetch(v[s] + kSubtile * a.head_dim_padded);
    const vf scales = load_scales(a, k[s]);
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      store(&t.scores[row + r][slot + s * kSubtile], to_float(acc[r][s]) * (scales * set1(a.q_scales[row + r])));
    }
  }
}

template <int R, int S, typename T>
void score_subtiles(const AttentionArgs& a, TileState& t, int row, int slot, const T* const* k, const T* const* v) {
  if constexpr (kCodes<T>) {
    score_codes<R, S>(a, t, row, slot, k, v);
  } else {
    score_floats<R, S>(a, t, row, slot, k, v);
  }
}

template <int R, typename T>
void score_rows(const AttentionArgs& a, TileState& t, int row, const T* const* k, const T* const* v, int subtiles) {
  constexpr int kWidth = attention_width(R);
  int s = 0;
  for (; s + kWidth <= subtiles; s += kWidth) score_subtiles<R, kWidth>(a, t, row, s * kSubtile, k + s, v + s);
  for (; s < subtiles; s++) score_subtiles<R, 1>(a, t, row, s * kSubtile, k + s, v + s);
}

// The scores of keys that a row may not see become -infinity.
inline void hide_keys(const AttentionArgs& a, float* scores, int row, int first_key, int subtiles) {
  const vi low = iset1(a.first_key[row] - first_key), high = iset1(a.last_key[row] - first_key);
  const vf hidden = set1(-INFINITY);
  for (int s = 0; s < subtiles; s++) {
    const vi key = iota() + iset1(s * kSubtile);
    vf v = load(scores + s * kSubtile);
    v = select_iless(high, key, hidden, v);
    v = select_iless(key, low, hidden, v);
    store(scores + s * kSubtile, v);
  }
}

// The maximum of a row's scores, after keys it may not see became -infinity.
inline float row_max(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  const int end = first_key + subtiles * kSubtile;
  if (a.first_key[row] > first_key || a.last_key[row] < end - 1) hide_keys(a, t.scores[row], row, first_key, subtiles);
  vf largest = set1(kNoKey);
  for (int s = 0; s < subtiles; s++) largest = max(load(t.scores[row] + s * kSubtile), largest);
  return max_lanes(largest);
}

// Turns a row's scores into exp(score - max), 0 for keys it may not see.
inline void weigh_floats(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  float* scores = t.scores[row];
  const float m = row_max(a, t, row, first_key, subtiles);
  vf total = zero();
  for (int s = 0; s < subtiles; s++) {
    const vf e = exp_lanes(load(scores + s * kSubtile) - set1(m));
    store(scores + s * kSubtile, e);
    total = total + e;
  }
  t.max[row] = m;
  t.sum[row] = sum_lanes(total);
}

// The same, and then into weights of the values' codes, whose products with them sum up to less than 2^31.
template <typename Code>
inline void weigh_codes(const AttentionArgs& a, TileState& t, int row, const Code* const* v, int first_key, int subtiles) {
  float* scores = t.scores[row];
  const float m = row_max(a, t, row, first_key, subtiles);
  vf total = zero(), weight_total = zero(), most = zero();
  for (int s = 0; s < subtiles; s++) {
    const vf e = exp_lanes(load(scores + s * kSubtile) - set1(m)), w = e * load_scales(a, v[s]);
    store(scores + s * kSubtile, w);
    total = total + e;
    weight_total = weight_total + w;
    most = max(w, most);
  }
  t.max[row] = m;
  t.sum[row] = sum_lanes(total);
  const float amax = max_lanes(most);
  float limit = 32767.0f;
  if constexpr (sizeof(Code) == 2) {
    constexpr float kMostSum = 2147483647.0f / kValueLimit - kTile;  // of the weights' codes, less what rounding may add
    const float sum = sum_lanes(weight_total);
    if (amax * kMostSum < limit * sum) limit = amax * kMostSum / sum;
  }
  const vf inverse = set1(inverse_scale(amax, limit));
  for (int s = 0; s < subtiles; s++) store_int16(t.weights[row] + s * kSubtile, to_int(load(scores + s * kSubtile) * inverse));
  t.weight_scales[row] = amax / limit;
}

// Brings the states of R rows and of their tile, whose scores are exp(score - max), to a common maximum: factors of both.
template <int R>
inline void merge_rows(const AttentionArgs& a, const TileState& t, int row, float* wa, float* wc) {
  float x[16] = {}, y[16] = {}, sum_x[16] = {}, sum_y[16] = {};
  for (int r = 0; r < R; r++) {
    x[r] = a.max[row + r];
    y[r] = t.max[row + r];
    sum_x[r] = a.sum[row + r];
    sum_y[r] = t.sum[row + r];
  }
  const vf m = max(load(x), load(y)), factor_x = exp_lanes(load(x) - m), factor_y = exp_lanes(load(y) - m);
  store(wa, factor_x);
  store(wc, factor_y);
  store(x, m);
  store(sum_x, load(sum_x) * factor_x + load(sum_y) * factor_y);
  for (int r = 0; r < R; r++) {
    a.max[row + r] = x[r];
    a.sum[row + r] = sum_x[r];
  }
}

// The sum over a tile's keys of p * v, for R rows and D vectors of the head from `d`. `ahead`: subtiles to fetch, or nullptr.
template <int R, int D, typename T>
void sum_floats(const AttentionArgs& a, const TileState& t, int row, const T* const* v, const T* const* ahead, int subtiles, int d,
                vf (*acc)[D]) {
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) acc[r][i] = zero();
  }
  for (int s = 0; s < subtiles; s++) {
    for (int j = 0; j < kSubtile; j++) {
      vf value[D];
      TRIVIUM_UNROLL for (int i = 0; i < D; i++) {
        const int at = j * a.head_dim_padded + d + 16 * i;
        value[i] = load_kv(v[s] + at);
        if (ahead != nullptr && i % 2 == 0) __builtin_prefetch(ahead[s] + at);
      }
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const vf p = set1(t.scores[row + r][s * kSubtile + j]);
        TRIVIUM_UNROLL for (int i = 0; i < D; i++) acc[r][i] = fma(p, value[i], acc[r][i]);
      }
    }
  }
}

template <int R, int D, typename Code>
void sum_codes(const AttentionArgs& a, const TileState& t, int row, const Code* const* v, const Code* const* ahead, int subtiles, int d,
               vf (*sums)[D]) {
  vi acc[R][D];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) acc[r][i] = izero();
  }
  for (int s = 0; s < subtiles; s++) {
    for (int j = 0; j < kSubtile; j += 2) {
      vpairs codes[D];
      TRIVIUM_UNROLL for (int i = 0; i < D; i++) {
        const int at = j * a.head_dim_padded + 2 * (d + 16 * i);
        codes[i] = load_pairs(v[s] + at);
        if (ahead != nullptr && (sizeof(Code) == 2 || i % 2 == 0)) __builtin_prefetch(ahead[s] + at);
      }
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const auto p = set1_pair(&t.weights[row + r][s * kSubtile + j]);
        TRIVIUM_UNROLL for (int i = 0; i < D; i++) acc[r][i] = dot_pairs(codes[i], p, acc[r][i]);
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) sums[r][i] = to_float(acc[r][i]) * set1(t.weight_scales[row + r]);
  }
}

// acc[r] = acc[r] * wa[r] + (sum over keys of p * v) * wc[r]
template <int R, int D, typename T>
void value_columns(const AttentionArgs& a, const TileState& t, int row, const T* const* v, const T* const* ahead, int subtiles, int d,
                   const float* wa, const float* wc) {
  vf sums[R][D];
  if constexpr (kCodes<T>) {
    sum_codes<R, D>(a, t, row, v, ahead, subtiles, d, sums);
  } else {
    sum_floats<R, D>(a, t, row, v, ahead, subtiles, d, sums);
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) {
      float* out = a.acc + static_cast<int64_t>(row + r) * a.head_dim_padded + d + 16 * i;
      store(out, fma(sums[r][i], set1(wc[r]), load(out) * set1(wa[r])));
    }
  }
}

// Where the tile of keys from `first_key` is, its last subtile standing in for those it lacks; nullptr if there is no such tile.
template <typename T>
inline const T* const* next_keys(const AttentionArgs& a, int first_key, const T** next) {
  const int last = a.last_key[a.queries - 1];
  if (first_key / kTile >= a.tile_end || first_key > last) return nullptr;
  for (int s = 0; s < kTile / kSubtile; s++) {
    const int key = first_key + s * kSubtile;
    next[s] = subtile<T>(a, a.k_offset, key < last ? key : last);
    if (kCodes<T>) __builtin_prefetch(next[s] + kSubtile * a.head_dim_padded);  // the scales
  }
  return next;
}

template <int R, typename T>
void attend_rows(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  const T *k[kTile / kSubtile], *v[kTile / kSubtile], *next[kTile / kSubtile];
  for (int s = 0; s < subtiles; s++) {
    k[s] = subtile<T>(a, a.k_offset, first_key + s * kSubtile);
    v[s] = subtile<T>(a, a.v_offset, first_key + s * kSubtile);
  }
  const T* const* ahead = row == 0 ? next_keys(a, first_key + kTile, next) : nullptr;
  score_rows<R>(a, t, row, k, v, subtiles);
  for (int r = 0; r < R; r++) {
    if constexpr (kCodes<T>) {
      weigh_codes(a, t, row + r, v, first_key, subtiles);
    } else {
      weigh_floats(a, t, row + r, first_key, subtiles);
    }
  }
  float wa[16], wc[16];
  merge_rows<R>(a, t, row, wa, wc);
  constexpr int kWidth = attention_width(R);
  int d = 0;
  for (; d + 16 * kWidth <= a.head_dim_padded; d += 16 * kWidth) value_columns<R, kWidth>(a, t, row, v, ahead, subtiles, d, wa, wc);
  for (; d < a.head_dim_padded; d += 16) value_columns<R, 1>(a, t, row, v, ahead, subtiles, d, wa, wc);
}

template <int R, typename T>
void attend_tiles(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  for (; row + R <= a.queries; row += R) attend_rows<R, T>(a, t, row, first_key, subtiles);
  if constexpr (R > 1) {
    if (row < a.queries) attend_tiles<R - 1, T>(a, t, row, first_key, subtiles);
  }
}

template <typename T>
void attention(const AttentionArgs& a) {
  TileState t;
  int last = 0;
  for (int r = 0; r < a.queries; r++) last = a.last_key[r] > last ? a.last_key[r] : last;
  for (int tile = a.tile_begin; tile < a.tile_end; tile++) {
    const int first_key = tile * kTile;
    const int keys = last + 1 - first_key < kTile ? last + 1 - first_key : kTile;
    attend_tiles<kAttentionRows, T>(a, t, 0, first_key, (keys + kSubtile - 1) / kSubtile);
  }
}

// exp(a - b) and exp(c - b) with b = max(a, c), which is returned.
inline float merge_weights(float a, float c, float* wa, float* wc) {
  const float b = a > c ? a : c;
  float x[16] = {a - b, c - b};
  store(x, exp_lanes(load(x)));
  *wa = x[0];
  *wc = x[1];
  return b;
}

void merge_attention(float* max_a, float* sum_a, float* acc_a, const float* max_b, const float* sum_b, const float* acc_b,
                     int head_dim_padded) {
  float wa, wb;
  *max_a = merge_weights(*max_a, *max_b, &wa, &wb);
  *sum_a = *sum_a * wa + *sum_b * wb;
  for (int d = 0; d < head_dim_padded; d += 16) {
    store(acc_a + d, fma(load(acc_b + d), set1(wb), load(acc_a + d) * set1(wa)));
  }
}
