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
// tile's keys, or those of the head that comes next, while its values are summed.

template <typename T>
constexpr bool kCodes = static_cast<T>(-1) < static_cast<T>(0) && sizeof(T) < 4;  // int8_t and int16_t, not floats

inline vf load_kv(const uint16_t* p) { return load_f16(p); }
inline vf load_kv(const float* p) { return load(p); }

// Of a tile, and of the rows that are computed together in it: a lane each, so no more than 16.
struct TileState {
  alignas(64) float scores[kMaxQueries][kTile];
  alignas(64) int16_t weights[kMaxQueries][kTile];  // of codes
  alignas(64) float max[16];
  alignas(64) float sum[16];
  alignas(64) float weight_scales[16];
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

// `Fetch`: the values as well.
template <int R, int S, bool Fetch, typename Code>
__attribute__((noinline)) void score_codes(const AttentionArgs& a, TileState& t, int row, int slot, const Code* const* k, const Code* const* v) {
  const int16_t* q = a.q_codes + static_cast<int64_t>(row) * a.head_dim_padded;
  vi acc[R][S];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = izero();
  }
  for (int d = 0; d < a.head_dim_padded; d += 2) {
    vpairs codes[S];
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
      codes[s] = load_pairs(k[s] + d * kSubtile);
      if constexpr (Fetch) __builtin_prefetch(v[s] + d * kSubtile);
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      const auto x = set1_pair(q + r * a.head_dim_padded + d);
      TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = dot_pairs(codes[s], x, acc[r][s]);
    }
  }
  TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
    if constexpr (Fetch) __builtin_prefetch(v[s] + kSubtile * a.head_dim_padded);
    const vf scales = load_scales(a, k[s]);
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      store(&t.scores[row + r][slot + s * kSubtile], to_float(acc[r][s]) * (scales * set1(a.q_scales[row + r])));
    }
  }
}

template <int R, int S, typename T>
void score_subtiles(const AttentionArgs& a, TileState& t, int row, int slot, const T* const* k, const T* const* v) {
  if constexpr (!kCodes<T>) {
    score_floats<R, S>(a, t, row, slot, k, v);
  } else if (row == 0) {
    score_codes<R, S, true>(a, t, row, slot, k, v);
  } else {
    score_codes<R, S, false>(a, t, row, slot, k, v);
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

// The maxima of R rows' scores, after keys they may not see became -infinity.
template <int R>
inline vf row_maxima(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  const int end = first_key + subtiles * kSubtile;
  vf largest[R];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    float* scores = t.scores[row + r];
    if (a.first_key[row + r] > first_key || a.last_key[row + r] < end - 1) hide_keys(a, scores, row + r, first_key, subtiles);
    largest[r] = set1(kNoKey);
    for (int s = 0; s < subtiles; s++) largest[r] = max(load(scores + s * kSubtile), largest[r]);
  }
  return max_rows<R>(largest);
}

// Turns R rows' scores into 2^(score - maximum), 0 for keys they may not see. Scores are of base 2: queries are scaled by log2(e) as well.
template <int R>
inline void weigh_floats(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  alignas(64) float most[16];
  store(most, row_maxima<R>(a, t, row, first_key, subtiles));
  vf total[R];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    total[r] = zero();
    for (int s = 0; s < subtiles; s++) {
      float* scores = t.scores[row + r] + s * kSubtile;
      const vf e = exp2_lanes(load(scores) - set1(most[r]));
      store(scores, e);
      total[r] = total[r] + e;
    }
  }
  store(t.max, load(most));
  store(t.sum, sum_rows<R>(total));
}

// Of weights in a tile's row, for each lane.
struct WeightSums {
  vf total, weight_total, largest;  // of 2^(score - maximum), of that times the value's scale, and of the latter
};

// N subtiles' scores into 2^(score - most), times the scales of the values' codes.
template <int N, typename Code>
inline void weigh_subtiles(const AttentionArgs& a, float* scores, float most, const Code* const* v, WeightSums* sums) {
  vf e[N];
  TRIVIUM_UNROLL for (int s = 0; s < N; s++) e[s] = load(scores + s * kSubtile) - set1(most);
  exp2_vectors<N>(e);
  TRIVIUM_UNROLL for (int s = 0; s < N; s++) {
    const vf w = e[s] * load_scales(a, v[s]);
    store(scores + s * kSubtile, w);
    sums->total = sums->total + e[s];
    sums->weight_total = sums->weight_total + w;
    sums->largest = max(w, sums->largest);
  }
}

// The same, and then into weights of the values' codes, whose products with them sum up to less than 2^31.
template <int R, typename Code>
inline void weigh_codes(const AttentionArgs& a, TileState& t, int row, const Code* const* v, int first_key, int subtiles) {
  alignas(64) float most[16], inverse[16];
  store(most, row_maxima<R>(a, t, row, first_key, subtiles));
  vf total[R], weight_total[R], largest[R];
  for (int r = 0; r < R; r++) {
    WeightSums sums{zero(), zero(), zero()};
    int s = 0;
    for (; s + 4 <= subtiles; s += 4) weigh_subtiles<4>(a, t.scores[row + r] + s * kSubtile, most[r], v + s, &sums);
    for (; s < subtiles; s++) weigh_subtiles<1>(a, t.scores[row + r] + s * kSubtile, most[r], v + s, &sums);
    total[r] = sums.total;
    weight_total[r] = sums.weight_total;
    largest[r] = sums.largest;
  }
  store(t.max, load(most));
  store(t.sum, sum_rows<R>(total));
  const vf amax = max_rows<R>(largest);
  vf limit = set1(32767.0f);
  if constexpr (sizeof(Code) == 2) {
    constexpr float kMostSum = 2147483647.0f / kValueLimit - kTile;  // of the weights' codes, less what rounding may add
    const vf sum = sum_rows<R>(weight_total), most_sum = amax * set1(kMostSum);
    limit = select_less(most_sum, limit * sum, most_sum / sum, limit);
  }
  store(inverse, select_less(set1(kSmallest), amax, limit / amax, zero()));
  store(t.weight_scales, amax / limit);
  for (int r = 0; r < R; r++) {
    const vf factor = set1(inverse[r]);
    for (int s = 0; s < subtiles; s++) {
      store_int16(t.weights[row + r] + s * kSubtile, to_int(load(t.scores[row + r] + s * kSubtile) * factor));
    }
  }
}

// Brings the states of R rows and of their tile to a common maximum: factors of both.
template <int R>
inline void merge_rows(const AttentionArgs& a, const TileState& t, int row, float* wa, float* wc) {
  float x[16] = {}, sum_x[16] = {};
  for (int r = 0; r < R; r++) {
    x[r] = a.max[row + r];
    sum_x[r] = a.sum[row + r];
  }
  const vf y = load(t.max), m = max(load(x), y), factor_x = exp2_lanes(load(x) - m), factor_y = exp2_lanes(y - m);
  store(wa, factor_x);
  store(wc, factor_y);
  store(x, m);
  store(sum_x, load(sum_x) * factor_x + load(t.sum) * factor_y);
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
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) sums[r][i] = to_float(acc[r][i]) * set1(t.weight_scales[r]);
  }
}

// acc[r] = acc[r] * wa[r] + (sum over keys of p * v) * wc[r]
template <int R, int D, typename T>
__attribute__((noinline)) void value_columns(const AttentionArgs& a, const TileState& t, int row, const T* const* v, const T* const* ahead, int subtiles, int d,
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

// Where a tile's subtiles are.
template <typename T>
struct TilePlace {
  int first_key, subtiles;
  const T *k[kTile / kSubtile], *v[kTile / kSubtile];
  const T* next[kTile / kSubtile];  // the keys to come, the last of these subtiles standing in for those that lack
  bool has_next;

  TilePlace(const AttentionArgs& a, int tile) : first_key(tile * kTile) {
    const int keys = a.last + 1 - first_key < kTile ? a.last + 1 - first_key : kTile, next_key = first_key + kTile;
    subtiles = (keys + kSubtile - 1) / kSubtile;
    for (int s = 0; s < subtiles; s++) {
      k[s] = subtile<T>(a, a.k_offset, first_key + s * kSubtile);
      v[s] = subtile<T>(a, a.v_offset, first_key + s * kSubtile);
    }
    const bool inside = tile + 1 < a.tile_end && next_key <= a.last;
    const AttentionArgs* from = inside ? &a : a.after;
    has_next = from != nullptr;
    for (int s = 0; has_next && s < kTile / kSubtile; s++) {
      const int key = (inside ? next_key : from->tile_begin * kTile) + s * kSubtile;
      next[s] = subtile<T>(*from, from->k_offset, key < from->last ? key : from->last);
      if (kCodes<T>) __builtin_prefetch(next[s] + kSubtile * a.head_dim_padded);  // the scales
    }
  }
};

template <int R, typename T>
void attend_rows(const AttentionArgs& a, TileState& t, const TilePlace<T>& place, int row) {
  const int subtiles = place.subtiles;
  score_rows<R>(a, t, row, place.k, place.v, subtiles);
  if constexpr (kCodes<T>) {
    weigh_codes<R>(a, t, row, place.v, place.first_key, subtiles);
  } else {
    weigh_floats<R>(a, t, row, place.first_key, subtiles);
  }
  alignas(64) float wa[16], wc[16];
  merge_rows<R>(a, t, row, wa, wc);
  const T* const* ahead = row == 0 && place.has_next ? place.next : nullptr;
  constexpr int kWidth = attention_width(R);
  int d = 0;
  for (; d + 16 * kWidth <= a.head_dim_padded; d += 16 * kWidth) {
    value_columns<R, kWidth>(a, t, row, place.v, ahead, subtiles, d, wa, wc);
  }
  for (; d < a.head_dim_padded; d += 16) value_columns<R, 1>(a, t, row, place.v, ahead, subtiles, d, wa, wc);
}

template <int R, typename T>
void attend_tile(const AttentionArgs& a, TileState& t, const TilePlace<T>& place, int row) {
  for (; row + R <= a.queries; row += R) attend_rows<R>(a, t, place, row);
  if constexpr (R > 1) {
    if (row < a.queries) attend_tile<R - 1>(a, t, place, row);
  }
}

template <typename T>
void attention(const AttentionArgs& a) {
  TileState t;
  for (int tile = a.tile_begin; tile < a.tile_end; tile++) attend_tile<kAttentionRows>(a, t, TilePlace<T>(a, tile), 0);
}

// 2^(a - b) and 2^(c - b) with b = max(a, c), which is returned.
inline float merge_weights(float a, float c, float* wa, float* wc) {
  const float b = a > c ? a : c;
  float x[16] = {a - b, c - b};
  store(x, exp2_lanes(load(x)));
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
