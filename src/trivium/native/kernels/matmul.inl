// Matrix products on packed weights. Included in each instruction set's translation unit, inside its anonymous namespace.
//
// One group is 16 output rows, one per lane. Per block of 32 weights the integer dot product is exact; then, in float,
//   acc += (dot * x_scale) * w_scale;  acc += x_sum * w_min
// in the order of the blocks: the same operations for a row whatever the tile it is in. packed_block.h says where things lie.

constexpr int kPrefetch = 8192;  // bytes ahead in the weight stream; 6 to 12 KB measured best where a thread reads 25 GB/s

// The scales of a block of `Codes` bytes of codes and `Parts` vectors of scales.
template <bool Nested, int Codes, int Parts>
struct Block {
  static constexpr int kBytes = Codes + Parts * 2 * kGroup;

  static const uint8_t* codes(const uint8_t* w, int b) { return w + (Nested ? nested_codes(b, Codes) : static_cast<int64_t>(b) * kBytes); }

  static vf scales(const uint8_t* w, int b, int part) {
    if constexpr (Nested) {
      const vf factor = load_f16(reinterpret_cast<const uint16_t*>(w + nested_factor(b, part, Codes)));
      return load_i8(reinterpret_cast<const int8_t*>(w + nested_scale(b, part, Codes))) * factor;
    } else {
      return load_f16(reinterpret_cast<const uint16_t*>(codes(w, b) + Codes + part * 2 * kGroup));
    }
  }
};

template <typename B, int R, int G>
inline void scale_accumulate(vf (*acc)[G], const vi (*dot)[G], const uint8_t* w, int64_t step, int b, int part, const float* scales,
                             int64_t stride) {
  vf s[G];
  TRIVIUM_UNROLL for (int g = 0; g < G; g++) s[g] = B::scales(w + g * step, b, part);
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    const vf x = set1(scales[r * stride]);
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) acc[r][g] = fma(to_float(dot[r][g]) * x, s[g], acc[r][g]);
  }
}

template <typename B, int R, int G>
inline void min_accumulate(vf (*acc)[G], const uint8_t* w, int64_t step, int b, const float* sums, int64_t stride) {
  vf m[G];
  TRIVIUM_UNROLL for (int g = 0; g < G; g++) m[g] = B::scales(w + g * step, b, 1);
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    const vf x = set1(sums[r * stride]);
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) acc[r][g] = fma(x, m[g], acc[r][g]);
  }
}

template <int R, int G>
inline void clear(vf (*acc)[G]) {
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) acc[r][g] = zero();
  }
}

template <int G, int Bytes>
inline void prefetch_block(const uint8_t* w, int64_t step) {
  TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
    TRIVIUM_UNROLL for (int line = 0; line < Bytes; line += 64) __builtin_prefetch(w + g * step + kPrefetch + line);
  }
}

// Names of `Expansion` that are looked up only where it pays.
template <int>
struct Dependent {
  using type = Expansion;
};

template <int R, int G, bool Nested, bool Int8, bool Expanded = false>
void tile_w4(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf (*out)[G]) {
  using B = Block<Nested, Expanded ? 512 : 256, 2>;
  vf acc[R][G];  // a local: through `out` every sum would go to memory
  clear<R, G>(acc);
  const float* scales = x.scales + row * x.blocks;
  const float* sums = x.sums + row * x.blocks;
  const int64_t step = view.group_bytes, stride = x.stride, blocks = x.blocks;
  const int8_t* q8 = x.q8 + row * stride;
  const int16_t* q16 = x.q16 + row * stride;
  for (int b = 0; b < view.blocks; b++) {
    const uint8_t* codes = B::codes(w, b);
    if (!Expanded) prefetch_block<G, B::kBytes>(codes, step);
    vi dot[R][G];
    if constexpr (Expanded) {
      Dependent<R>::type::template dot<R, G>(codes, step, q8 + b * kBlock, stride, dot);
    } else if (Int8) {
      dot_w4a8<R, G>(codes, step, q8 + b * kBlock, stride, dot);
    } else {
      dot_w4a16<R, G>(codes, step, q16 + b * kBlock, stride, dot);
    }
    scale_accumulate<B, R, G>(acc, dot, w, step, b, 0, scales + b, blocks);
    min_accumulate<B, R, G>(acc, w, step, b, sums + b, blocks);
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) out[r][g] = acc[r][g];
  }
}

template <int R, int G, bool Nested, bool Min, bool Half>
void tile_w8(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf (*out)[G]) {
  using B = Block<Nested, 512, 1 + (Min || Half)>;
  vf acc[R][G];  // a local: through `out` every sum would go to memory
  clear<R, G>(acc);
  const float* scales = x.scales + row * x.blocks;
  const float* sums = x.sums + row * x.blocks;
  const int64_t step = view.group_bytes, stride = x.stride, blocks = x.blocks;
  for (int b = 0; b < view.blocks; b++) {
    const uint8_t* codes = B::codes(w, b);
    prefetch_block<G, B::kBytes>(codes, step);
    const int16_t* q = x.q16 + row * stride + b * kBlock;
    vi dot[R][G];
    if (Half) {
      dot_w8a16<R, G>(codes, step, q, stride, 8, dot);
      scale_accumulate<B, R, G>(acc, dot, w, step, b, 0, scales + b, blocks);
      dot_w8a16<R, G>(codes + 256, step, q + 16, stride, 8, dot);
      scale_accumulate<B, R, G>(acc, dot, w, step, b, 1, scales + b, blocks);
    } else {
      dot_w8a16<R, G>(codes, step, q, stride, 16, dot);
      scale_accumulate<B, R, G>(acc, dot, w, step, b, 0, scales + b, blocks);
    }
    if (Min) min_accumulate<B, R, G>(acc, w, step, b, sums + b, blocks);
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) out[r][g] = acc[r][g];
  }
}

inline vf load_weights(const uint8_t* p, Family family) {
  switch (family) {
    case Family::kF32: return load(reinterpret_cast<const float*>(p));
    case Family::kF16: return load_f16(reinterpret_cast<const uint16_t*>(p));
    default: return load_bf16(reinterpret_cast<const uint16_t*>(p));
  }
}

template <int R, int G, Family F>
void tile_float(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf (*out)[G]) {
  vf acc[R][G];  // a local: through `out` every sum would go to memory
  clear<R, G>(acc);
  constexpr int kBytes = F == Family::kF32 ? 64 : 32;
  for (int k = 0; k < view.cols; k++) {
    vf weight[G];
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) weight[g] = load_weights(w + g * view.group_bytes + static_cast<int64_t>(k) * kBytes, F);
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      const vf xv = set1(x.x[(row + r) * x.stride + k]);
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) acc[r][g] = fma(xv, weight[g], acc[r][g]);
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) out[r][g] = acc[r][g];
  }
}

template <int G>
using Tile = void (*)(const uint8_t*, const PackedView&, const ActivationView&, int, vf (*)[G]);

template <int R, int G>
Tile<G> choose_tile(const PackedView& w, Activation kind) {
  switch (w.family) {
    case Family::kW4:
      if constexpr (Expansion::kPays) {
        if (w.expanded) return w.nested ? tile_w4<R, G, true, true, true> : tile_w4<R, G, false, true, true>;
      }
      if (kind == Activation::kInt8) return w.nested ? tile_w4<R, G, true, true> : tile_w4<R, G, false, true>;
      return w.nested ? tile_w4<R, G, true, false> : tile_w4<R, G, false, false>;
    case Family::kW8:
      if (w.half_scales) return tile_w8<R, G, true, false, true>;
      if (w.has_min) return w.nested ? tile_w8<R, G, true, true, false> : tile_w8<R, G, false, true, false>;
      return w.nested ? tile_w8<R, G, true, false, false> : tile_w8<R, G, false, false, false>;
    case Family::kF32: return tile_float<R, G, Family::kF32>;
    case Family::kF16: return tile_float<R, G, Family::kF16>;
    default: return tile_float<R, G, Family::kBF16>;
  }
}

inline void finish_row(const MatmulOutput& o, int row, int first, int count, vf acc) {
  float* out = o.out + row * o.stride + first;
  if (count == kGroup) {
    if (o.bias != nullptr) acc = acc + load(o.bias + first);
    store(out, o.accumulate ? fma(acc, set1(o.multiplier), load(out)) : acc);
    return;
  }
  if (o.bias != nullptr) acc = acc + load_tail(o.bias + first, count, 0.0f);
  store_tail(out, o.accumulate ? fma(acc, set1(o.multiplier), load_tail(out, count, 0.0f)) : acc, count);
}

template <int R, int G>
void run_tile(Tile<G> tile, const PackedView& w, const ActivationView& x, int row, int group, const MatmulOutput& out) {
  vf acc[R][G];
  tile(w.data + group * w.group_bytes, w, x, row, acc);
  TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
    const int first = (group + g) * kGroup;
    const int count = w.rows - first < kGroup ? w.rows - first : kGroup;
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) finish_row(out, row + r, first, count, acc[r][g]);
  }
}

// One tile of `rows` <= R rows.
template <int R, int G>
void run_some(int rows, const PackedView& w, const ActivationView& x, int row, int group, const MatmulOutput& out) {
  if constexpr (R > 1) {
    if (rows < R) {
      run_some<R - 1, G>(rows, w, x, row, group, out);
      return;
    }
  }
  run_tile<R, G>(choose_tile<R, G>(w, x.kind), w, x, row, group, out);
}

// All rows [row, row_end) in tiles of at most R, the last two of like size; the groups stay in the first-level cache.
template <int R, int G>
void run_rows(const PackedView& w, const ActivationView& x, int row, int row_end, int group, const MatmulOutput& out) {
  while (row < row_end) {
    const int left = row_end - row;
    const int rows = left >= 2 * R || left == R ? R : left > R ? (left + 1) / 2 : left;
    run_some<R, G>(rows, w, x, row, group, out);
    row += rows;
  }
}

constexpr int kExpandRows = 64;     // from so many on, unpacking a group at once pays: until then its bytes are waited for
constexpr int kExpandBlocks = 256;  // of a group, at most: they shall stay in the second-level cache

// `group` of w with a byte per code, in `out`.
template <bool Nested>
PackedView expand(const PackedView& w, int group, uint8_t* out) {
  using From = Block<Nested, 256, 2>;
  using To = Block<Nested, 512, 2>;
  const uint8_t* from = w.data + group * w.group_bytes;
  for (int b = 0; b < w.blocks; b++) {
    const uint8_t* codes = From::codes(from, b);
    uint8_t* to = out + (To::codes(out, b) - out);
    __builtin_prefetch(codes + kPrefetch);
    Dependent<Nested>::type::expand(codes, to);
    if (!Nested) {
      std::memcpy(to + 512, codes + 256, 4 * kGroup);
    } else if (b % kNest == 0) {
      std::memcpy(to - kNestScales, codes - kNestScales, kNestScales);
    }
  }
  PackedView view = w;
  view.data = out;
  view.group_bytes = 0;
  view.expanded = true;
  return view;
}

void matmul(const PackedView& w, const ActivationView& x, int row_begin, int row_end, int group_begin, int group_end,
            const MatmulOutput& out) {
  int group = group_begin;
  if constexpr (Expansion::kPays) {
    const bool expands = w.family == Family::kW4 && x.kind == Activation::kInt8 && w.blocks <= kExpandBlocks;
    if (expands && row_end - row_begin >= kExpandRows) {
      alignas(64) uint8_t codes[kExpandBlocks * Block<false, 512, 2>::kBytes];  // nested blocks take less
      for (; group < group_end; group++) {
        const PackedView view = w.nested ? expand<true>(w, group, codes) : expand<false>(w, group, codes);
        run_rows<kWideRows, 1>(view, x, row_begin, row_end, group, out);
      }
    }
  }
  // Few rows are bound by memory and read one stream; many share each broadcast activation between two groups.
  if (row_end - row_begin > kNarrowRows) {
    for (; group + kWideGroups <= group_end; group += kWideGroups) run_rows<kWideRows, kWideGroups>(w, x, row_begin, row_end, group, out);
  }
  for (; group < group_end; group++) run_rows<kNarrowRows, 1>(w, x, row_begin, row_end, group, out);
}
