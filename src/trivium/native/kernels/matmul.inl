// Matrix products on packed weights. Included in each instruction set's translation unit, inside its anonymous namespace.
//
// One group is 16 output rows, one per lane. Per block of 32 weights the integer dot product is exact; then, in float,
//   acc += (dot * x_scale) * w_scale;  acc += x_sum * w_min
// in the order of the blocks: the same operations for a row whatever the tile it is in.

constexpr int kPrefetch = 2048;  // bytes ahead in the weight stream; 1.3 to 2.5 KB measured best

inline vf load_scales(const uint8_t* p, bool wide) {
  return wide ? load(reinterpret_cast<const float*>(p)) : load_f16(reinterpret_cast<const uint16_t*>(p));
}

template <bool Wide>
constexpr int kScaleBytes = Wide ? 4 * kGroup : 2 * kGroup;

template <int R>
inline void scale_accumulate(vf* acc, const vi* dot, vf w_scale, const float* scales, int64_t stride) {
  for (int r = 0; r < R; r++) acc[r] = fma(to_float(dot[r]) * set1(scales[r * stride]), w_scale, acc[r]);
}

template <int R>
inline void min_accumulate(vf* acc, vf w_min, const float* sums, int64_t stride) {
  for (int r = 0; r < R; r++) acc[r] = fma(set1(sums[r * stride]), w_min, acc[r]);
}

template <int R, bool Wide, bool Int8>
void tile_w4(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf* acc) {
  constexpr int kBytes = 256 + 2 * kScaleBytes<Wide>;
  const float* scales = x.scales + row * x.blocks;
  const float* sums = x.sums + row * x.blocks;
  for (int b = 0; b < view.blocks; b++, w += kBytes) {
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kPrefetch + line);
    vi dot[R];
    if (Int8) {
      dot_w4a8<R>(w, x.q8 + row * x.stride + b * kBlock, x.stride, dot);
    } else {
      dot_w4a16<R>(w, x.q16 + row * x.stride + b * kBlock, x.stride, dot);
    }
    scale_accumulate<R>(acc, dot, load_scales(w + 256, Wide), scales + b, x.blocks);
    min_accumulate<R>(acc, load_scales(w + 256 + kScaleBytes<Wide>, Wide), sums + b, x.blocks);
  }
}

template <int R, bool Wide, bool Min, bool Half>
void tile_w8(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf* acc) {
  constexpr int kBytes = 512 + (Half ? 2 : 1) * kScaleBytes<Wide> + (Min ? kScaleBytes<Wide> : 0);
  const float* scales = x.scales + row * x.blocks;
  const float* sums = x.sums + row * x.blocks;
  for (int b = 0; b < view.blocks; b++, w += kBytes) {
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kPrefetch + line);
    const int16_t* q = x.q16 + row * x.stride + b * kBlock;
    vi dot[R];
    if (Half) {
      dot_w8a16<R>(w, q, x.stride, 8, dot);
      scale_accumulate<R>(acc, dot, load_scales(w + 512, Wide), scales + b, x.blocks);
      dot_w8a16<R>(w + 256, q + 16, x.stride, 8, dot);
      scale_accumulate<R>(acc, dot, load_scales(w + 512 + kScaleBytes<Wide>, Wide), scales + b, x.blocks);
    } else {
      dot_w8a16<R>(w, q, x.stride, 16, dot);
      scale_accumulate<R>(acc, dot, load_scales(w + 512, Wide), scales + b, x.blocks);
    }
    if (Min) min_accumulate<R>(acc, load_scales(w + kBytes - kScaleBytes<Wide>, Wide), sums + b, x.blocks);
  }
}

inline vf load_weights(const uint8_t* p, Family family) {
  switch (family) {
    case Family::kF32: return load(reinterpret_cast<const float*>(p));
    case Family::kF16: return load_f16(reinterpret_cast<const uint16_t*>(p));
    default: return load_bf16(reinterpret_cast<const uint16_t*>(p));
  }
}

template <int R, Family F>
void tile_float(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf* acc) {
  constexpr int kBytes = F == Family::kF32 ? 64 : 32;
  for (int k = 0; k < view.cols; k++) {
    const vf weight = load_weights(w + static_cast<int64_t>(k) * kBytes, F);
    for (int r = 0; r < R; r++) acc[r] = fma(set1(x.x[(row + r) * x.stride + k]), weight, acc[r]);
  }
}

using Tile = void (*)(const uint8_t*, const PackedView&, const ActivationView&, int, vf*);

template <int R>
Tile choose_tile(const PackedView& w, Activation kind) {
  switch (w.family) {
    case Family::kW4:
      if (kind == Activation::kInt8) return w.wide_scales ? tile_w4<R, true, true> : tile_w4<R, false, true>;
      return w.wide_scales ? tile_w4<R, true, false> : tile_w4<R, false, false>;
    case Family::kW8:
      if (w.half_scales) return tile_w8<R, true, false, true>;
      if (w.has_min) return w.wide_scales ? tile_w8<R, true, true, false> : tile_w8<R, false, true, false>;
      return w.wide_scales ? tile_w8<R, true, false, false> : tile_w8<R, false, false, false>;
    case Family::kF32: return tile_float<R, Family::kF32>;
    case Family::kF16: return tile_float<R, Family::kF16>;
    default: return tile_float<R, Family::kBF16>;
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

template <int R>
void run_tile(Tile tile, const PackedView& w, const ActivationView& x, int row, int group, const MatmulOutput& out) {
  vf acc[R];
  for (int r = 0; r < R; r++) acc[r] = zero();
  tile(w.data + group * w.group_bytes, w, x, row, acc);
  const int first = group * kGroup;
  const int count = w.rows - first < kGroup ? w.rows - first : kGroup;
  for (int r = 0; r < R; r++) finish_row(out, row + r, first, count, acc[r]);
}

// All rows [row_begin, row_end) in tiles of R, then the rest in smaller ones; `group` stays in the first-level cache.
template <int R>
void run_rows(const PackedView& w, const ActivationView& x, int row, int row_end, int group, const MatmulOutput& out) {
  if (row + R <= row_end) {
    const Tile tile = choose_tile<R>(w, x.kind);
    for (; row + R <= row_end; row += R) run_tile<R>(tile, w, x, row, group, out);
  }
  if constexpr (R > 1) {
    if (row < row_end) run_rows<R - 1>(w, x, row, row_end, group, out);
  }
}

void matmul(const PackedView& w, const ActivationView& x, int row_begin, int row_end, int group_begin, int group_end,
            const MatmulOutput& out) {
  for (int group = group_begin; group < group_end; group++) run_rows<kMatmulRows>(w, x, row_begin, row_end, group, out);
}
