// Attention over the paged KV cache. Included in each instruction set's translation unit, inside its anonymous namespace.
//
// Keys lie as [head_dim][16] per 16 positions, so that a lane is a key and q.k needs no horizontal sums; values as [16][head_dim].
// The softmax of each tile of 128 keys, counted from absolute position 0, is computed from the tile's own maximum, and tiles are
// merged in order (Dao et al., FlashAttention, 2022): the same operations for a query in prefill, in decode and with any split.

inline vf load_kv(const uint16_t* p) { return load_f16(p); }
inline vf load_kv(const float* p) { return load(p); }

struct TileState {
  float scores[kMaxQueries][kTile];
  float max[kMaxQueries];
  float sum[kMaxQueries];
};

template <typename T>
inline const T* subtile(const AttentionArgs& a, int64_t offset, int key) {
  const int block = key / a.block_size, within = (key % a.block_size) / kSubtile;
  return static_cast<const T*>(a.cache) + a.blocks[block] * a.block_stride + offset +
         static_cast<int64_t>(within) * kSubtile * a.head_dim_padded;
}

// scores[r][16 keys] for R rows and S neighbouring subtiles.
template <int R, int S, typename T>
void score_subtiles(const AttentionArgs& a, TileState& t, int row, int key, int slot) {
  const T* k[S];
  const T* v[S];
  TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
    k[s] = subtile<T>(a, a.k_offset, key + s * kSubtile);
    v[s] = subtile<T>(a, a.v_offset, key + s * kSubtile);
  }
  const float* q = a.q + static_cast<int64_t>(row) * a.head_dim_padded;
  vf acc[R][S];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) acc[r][s] = zero();
  }
  for (int d = 0; d < a.head_dim_padded; d++) {
    vf kv[S];
    TRIVIUM_UNROLL for (int s = 0; s < S; s++) {
      kv[s] = load_kv(k[s] + d * kSubtile);
      // Decoding reads each cache line once, from far away: fetch this subtile's values and the next subtiles' keys meanwhile.
      __builtin_prefetch(v[s] + d * kSubtile);
      __builtin_prefetch(k[s] + (S * a.head_dim_padded + d) * kSubtile);
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

template <int R, typename T>
void score_rows(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  constexpr int kWidth = attention_width(R);
  int s = 0;
  for (; s + kWidth <= subtiles; s += kWidth) score_subtiles<R, kWidth, T>(a, t, row, first_key + s * kSubtile, s * kSubtile);
  for (; s < subtiles; s++) score_subtiles<R, 1, T>(a, t, row, first_key + s * kSubtile, s * kSubtile);
}

// Turns a row's scores into exp(score - max), 0 for keys it may not see.
inline void softmax_row(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  const vi low = iset1(a.first_key[row] - first_key), high = iset1(a.last_key[row] - first_key);
  const vf hidden = set1(-INFINITY);
  float* scores = t.scores[row];
  vf largest = set1(kNoKey);
  for (int s = 0; s < subtiles; s++) {
    const vi key = iota() + iset1(s * kSubtile);
    vf v = load(scores + s * kSubtile);
    v = select_iless(high, key, hidden, v);
    v = select_iless(key, low, hidden, v);
    store(scores + s * kSubtile, v);
    largest = max(v, largest);
  }
  const float m = max_lanes(largest);
  vf total = zero();
  for (int s = 0; s < subtiles; s++) {
    const vf e = exp_lanes(load(scores + s * kSubtile) - set1(m));
    store(scores + s * kSubtile, e);
    total = total + e;
  }
  t.max[row] = m;
  t.sum[row] = sum_lanes(total);
}

// exp(a - b) and exp(c - b) with b = max(a, c)
inline float merge_weights(float a, float c, float* wa, float* wc) {
  const float b = a > c ? a : c;
  float x[16] = {a - b, c - b};
  store(x, exp_lanes(load(x)));
  *wa = x[0];
  *wc = x[1];
  return b;
}

// acc[r] = acc[r] * wa[r] + (sum over keys of p * v) * wc[r], for R rows and D vectors of the head from `d`.
template <int R, int D, typename T>
void value_columns(const AttentionArgs& a, const TileState& t, int row, const T* const* v, int subtiles, int d, const float* wa,
                   const float* wc) {
  vf acc[R][D];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) acc[r][i] = zero();
  }
  for (int s = 0; s < subtiles; s++) {
    for (int j = 0; j < kSubtile; j++) {
      vf value[D];
      TRIVIUM_UNROLL for (int i = 0; i < D; i++) value[i] = load_kv(v[s] + j * a.head_dim_padded + d + 16 * i);
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const vf p = set1(t.scores[row + r][s * kSubtile + j]);
        TRIVIUM_UNROLL for (int i = 0; i < D; i++) acc[r][i] = fma(p, value[i], acc[r][i]);
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int i = 0; i < D; i++) {
      float* out = a.acc + static_cast<int64_t>(row + r) * a.head_dim_padded + d + 16 * i;
      store(out, fma(acc[r][i], set1(wc[r]), load(out) * set1(wa[r])));
    }
  }
}

template <int R, typename T>
void attend_rows(const AttentionArgs& a, TileState& t, int row, int first_key, int subtiles) {
  score_rows<R, T>(a, t, row, first_key, subtiles);
  float wa[R], wc[R];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    softmax_row(a, t, row + r, first_key, subtiles);
    const float m = merge_weights(a.max[row + r], t.max[row + r], &wa[r], &wc[r]);
    a.max[row + r] = m;
    a.sum[row + r] = a.sum[row + r] * wa[r] + t.sum[row + r] * wc[r];
  }
  const T* v[kTile / kSubtile];
  for (int s = 0; s < subtiles; s++) v[s] = subtile<T>(a, a.v_offset, first_key + s * kSubtile);
  constexpr int kWidth = attention_width(R);
  int d = 0;
  for (; d + 16 * kWidth <= a.head_dim_padded; d += 16 * kWidth) value_columns<R, kWidth, T>(a, t, row, v, subtiles, d, wa, wc);
  for (; d < a.head_dim_padded; d += 16) value_columns<R, 1, T>(a, t, row, v, subtiles, d, wa, wc);
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

void merge_attention(float* max_a, float* sum_a, float* acc_a, const float* max_b, const float* sum_b, const float* acc_b,
                     int head_dim_padded) {
  float wa, wb;
  *max_a = merge_weights(*max_a, *max_b, &wa, &wb);
  *sum_a = *sum_a * wa + *sum_b * wb;
  for (int d = 0; d < head_dim_padded; d += 16) {
    store(acc_a + d, fma(load(acc_b + d), set1(wb), load(acc_a + d) * set1(wa)));
  }
}
