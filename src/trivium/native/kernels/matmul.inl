// Matrix products on packed weights. Included in each instruction set's translation unit, inside its anonymous namespace.
//
// One group is 16 output rows, one per lane. Per block of 32 weights the integer dot product is exact; then, in float,
//   acc += (dot * x_scale) * w_scale;  acc += x_sum * w_min
// in the order of the blocks: the same operations for a row whatever the tile it is in. packed_block.h says where things lie.

// The scales of a block of `Codes` bytes of codes and `Parts` vectors of scales.
template <bool Nested, int Codes, int Parts>
struct Block {
  static constexpr int kScaleBytes = Parts * 2 * kGroup, kBytes = Codes + kScaleBytes;

  // Of a group.
  static constexpr int64_t bytes(int blocks) { return Nested ? blocks / kNest * nest_bytes(Codes) : static_cast<int64_t>(blocks) * kBytes; }

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

// `scales` and `offsets` are those of block `b`. `Int8`: sums may start at kFloatBase.
template <typename B, int R, int G, bool Int8>
inline void scale_accumulate(vf (*acc)[G], const vi (*dot)[G], const uint8_t* w, int64_t step, int b, int part, const float* scales,
                             const float* offsets, int64_t stride) {
  vf s[G];
  TRIVIUM_UNROLL for (int g = 0; g < G; g++) s[g] = B::scales(w + g * step, b, part);
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    const vf x = set1(scales[r * stride]);
    if constexpr (Int8 && kFloatSums) {
      const vf offset = set1(offsets[r * stride]);
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) acc[r][g] = fma(fma(from_bits(dot[r][g]), x, offset), s[g], acc[r][g]);
    } else {
      TRIVIUM_UNROLL for (int g = 0; g < G; g++) acc[r][g] = fma(to_float(dot[r][g]) * x, s[g], acc[r][g]);
    }
  }
}

// `Min`: with minima that are stored; else those of codes around 8.
template <typename B, bool Min, int R, int G>
inline void min_accumulate(vf (*acc)[G], const uint8_t* w, int64_t step, int b, const float* sums, int64_t stride) {
  vf m[G];
  TRIVIUM_UNROLL for (int g = 0; g < G; g++) m[g] = Min ? B::scales(w + g * step, b, 1) : B::scales(w + g * step, b, 0) * set1(-8.0f);
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

// `Expansion` and `Fours`, whose members are looked up only where there are any.
template <int>
struct Dependent {
  using type = Expansion;
  using fours = Fours;
};

template <int R, int G, bool Nested, bool Min, bool Int8, bool Shares, bool Expanded = false>
TRIVIUM_FLATTEN void tile_w4(const uint8_t* w, const PackedView& view, const ActivationView& x, int row, vf (*out)[G]) {
  using Packed = Block<Nested, kCodes4, 1 + Min>;
  using B = Block<Nested, Expanded ? kCodes8 : kCodes4, 1 + Min>;
  vf acc[R][G];  // a local: through `out` every sum would go to memory
  clear<R, G>(acc);
  const float* scales = x.scales + row * x.blocks;
  const float* sums = x.sums + row * x.blocks;
  const float* offsets = x.offsets + row * x.blocks;
  const int64_t step = view.group_bytes, stride = x.stride, blocks = x.blocks;
  const int8_t* q8 = x.q8 + row * stride;
  const int16_t* q16 = x.q16 + row * stride;
  for (int b = 0; b < view.blocks; b++) {
    const uint8_t* codes = B::codes(w, b);
    prefetch_block<Shares, Shares && !Expanded && (kBesideLines > 0), G, Packed::kBytes>(view, codes, step, b);
    vi dot[R][G];
    if constexpr (Expanded) {
      Dependent<R>::type::template dot<R, G>(codes, step, q8 + b * kBlock, stride, dot);
    } else if (Int8) {
      dot_w4a8<R, G>(codes, step, q8 + b * kBlock, stride, dot);
    } else {
      dot_w4a16<R, G>(codes, step, q16 + b * kBlock, stride, dot);
    }
    scale_accumulate<B, R, G, Int8>(acc, dot, w, step, b, 0, scales + b, offsets + b, blocks);
    min_accumulate<B, Min, R, G>(acc, w, step, b, sums + b, blocks);
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) out[r][g] = acc[r][g];
  }
}

// The view from row `row` on.
inline ActivationView from_row(ActivationView x, int row) {
  x.q8 += row * x.stride;
  x.q16 += row * x.stride;
  x.scales += row * x.blocks;
  x.sums += row * x.blocks;
  x.offsets += row * x.blocks;
  x.biases += row * x.blocks * 3;
  return x;
}

// Adds block `b` of W8 from `codes`, of groups `codes_step` apart; of groups `w` with the scales of `B`. `Half`: with a scale for each half
// of the block. `Int8`: codes in fours.
template <typename B, int R, int G, bool Min, bool Half, bool Int8>
inline void accumulate_w8(vf (*acc)[G], const uint8_t* codes, int64_t codes_step, const uint8_t* w, int64_t step, int b,
                          const ActivationView& x) {
  constexpr int kParts = Half ? 2 : 1, kColumns = kBlock / kParts;
  TRIVIUM_UNROLL for (int part = 0; part < kParts; part++) {
    vi dot[R][G];
    const int64_t column = b * kBlock + part * kColumns;
    const uint8_t* from = codes + part * kGroup * kColumns;
    if constexpr (Int8) {
      const int32_t* biases = x.biases + b * 3 + (Half ? 1 + part : 0);
      Dependent<R>::fours::template dot<R, G, kColumns / 4>(from, codes_step, x.q8 + column, x.stride, biases, x.blocks * 3, dot);
    } else {
      dot_w8a16<R, G>(from, codes_step, x.q16 + column, x.stride, kColumns / 2, dot);
    }
    scale_accumulate<B, R, G, Int8>(acc, dot, w, step, b, part, x.scales + b, x.offsets + b, x.blocks);
  }
  if (Min) min_accumulate<B, true, R, G>(acc, w, step, b, x.sums + b, x.blocks);
}

// `Half`: made of W6, whose codes are times 4.
template <int R, int G, bool Half>
inline void finish_w8(vf (*acc)[G], vf (*out)[G]) {
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) out[r][g] = Half ? acc[r][g] * set1(0.25f) : acc[r][g];
  }
}

// W8 as it is packed, for int16; or `view.expanded`.
template <int R, int G, bool Nested, bool Min, bool Half, bool Int8, bool Shares>
TRIVIUM_FLATTEN void tile_w8(const uint8_t* w, const PackedView& view, const ActivationView& all, int row, vf (*out)[G]) {
  using Packed = Block<Nested, Half ? kCodes6 : kCodes8, 1 + (Min || Half)>;
  using B = Block<Nested, kCodes8, 1 + (Min || Half)>;
  vf acc[R][G];  // a local: through `out` every sum would go to memory
  clear<R, G>(acc);
  const ActivationView x = from_row(all, row);
  const int64_t step = view.group_bytes;
  for (int b = 0; b < view.blocks; b++) {
    const uint8_t* codes = B::codes(w, b);
    prefetch_block<Shares, Shares && (kBesideLines > 0), G, Packed::kBytes>(view, codes, step, b);
    accumulate_w8<B, R, G, Min, Half, Int8>(acc, codes, step, w, step, b, x);
  }
  finish_w8<R, G, Half>(acc, out);
}

// 64 bytes of codes in pairs, as the activations want them.
template <bool Int8>
inline void store_codes8(uint8_t* to, const void* pairs) {
  if constexpr (Int8) {
    Dependent<Int8>::fours::store(to, pairs);
  } else {
    std::memcpy(to, pairs, 64);
  }
}

// The codes of a W6 block, times 4, as those of a W8 block; matrix.h says where their bits are.
template <bool Int8>
inline void unpack_w6(const uint8_t* from, uint8_t* to) {
  typedef uint16_t Words __attribute__((vector_size(64)));  // GCC shifts bytes to the left by adding them to themselves
  constexpr uint16_t kHigh = 0xf0f0, kLow = 0x0c0c;
  TRIVIUM_UNROLL for (int i = 0; i < 128; i += 64) {
    Words a, b, low;
    std::memcpy(&a, from + i, sizeof a);
    std::memcpy(&b, from + 128 + i, sizeof b);
    std::memcpy(&low, from + 256 + i, sizeof low);
    const Words codes[4] = {(a & kHigh) | (low & kLow), (b & kHigh) | (low << 2 & kLow), (a << 4 & kHigh) | (low >> 2 & kLow),
                            (b << 4 & kHigh) | (low >> 4 & kLow)};
    for (int k = 0; k < 4; k++) store_codes8<Int8>(to + 128 * k + i, &codes[k]);
  }
}

// W6, or W8 for int8. Unpacks each block where it is used, so that memory is read while it is multiplied; `Keep`: in view.unpacked, for
// other rows.
template <int R, int G, bool Nested, bool Min, bool W6, bool Int8, bool Shares, bool Keep>
TRIVIUM_FLATTEN void tile_unpacking(const uint8_t* w, const PackedView& view, const ActivationView& all, int row, vf (*out)[G]) {
  using From = Block<Nested, W6 ? kCodes6 : kCodes8, 1 + (Min || W6)>;
  using To = Block<Nested, kCodes8, 1 + (Min || W6)>;
  vf acc[R][G];  // a local: through `out` every sum would go to memory
  clear<R, G>(acc);
  const ActivationView x = from_row(all, row);
  const int64_t step = view.group_bytes;
  alignas(64) uint8_t local[G][kCodes8];
  const int64_t codes_step = Keep ? To::bytes(view.blocks) : kCodes8;
  for (int b = 0; b < view.blocks; b++) {
    const uint8_t* from = From::codes(w, b);
    uint8_t* codes = Keep ? view.unpacked + (To::codes(view.unpacked, b) - view.unpacked) : local[0];
    prefetch_block<Shares, Shares && (kBesideLines > 0), G, From::kBytes>(view, from, step, b);
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
      uint8_t* to = codes + g * codes_step;
      if constexpr (W6) {
        unpack_w6<Int8>(from + g * step, to);
      } else {
        TRIVIUM_UNROLL for (int i = 0; i < kCodes8; i += 64) store_codes8<Int8>(to + i, from + g * step + i);
      }
      if (Keep && !Nested) std::memcpy(to + kCodes8, from + g * step + kCodes8, From::kScaleBytes);
      if (Keep && Nested && b % kNest == 0) std::memcpy(to - kNestScales, from + g * step - kNestScales, kNestScales);
    }
    accumulate_w8<From, R, G, Min, W6, Int8>(acc, codes, codes_step, w, step, b, x);
  }
  finish_w8<R, G, W6>(acc, out);
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

template <int R, int G, bool Nested, bool Min, bool Shares>
Tile<G> choose_w4(const PackedView& w, Activation kind) {
  if constexpr (Expansion::kPays && Shares) {
    if (w.expanded) return tile_w4<R, G, Nested, Min, true, true, true>;
  }
  return kind == Activation::kInt8 ? tile_w4<R, G, Nested, Min, true, Shares> : tile_w4<R, G, Nested, Min, false, Shares>;
}

template <int R, int G, bool Nested, bool Min, bool W6, bool Int8, bool Shares>
Tile<G> choose_unpacking(const PackedView& w) {
  if constexpr (Shares) {
    if (w.expanded) return tile_w8<R, G, Nested, Min, W6, Int8, true>;
    if (w.unpacked != nullptr) return tile_unpacking<R, G, Nested, Min, W6, Int8, true, true>;
  }
  return tile_unpacking<R, G, Nested, Min, W6, Int8, Shares, false>;
}

template <int R, int G, bool Nested, bool Min, bool Shares>
Tile<G> choose_w8(const PackedView& w, Activation kind) {
  if constexpr (Fours::kHave) {
    if (kind == Activation::kInt8) return choose_unpacking<R, G, Nested, Min, false, true, Shares>(w);
  }
  return tile_w8<R, G, Nested, Min, false, false, Shares>;
}

template <int R, int G, bool Shares>
Tile<G> choose_w6(const PackedView& w, Activation kind) {
  if constexpr (Fours::kHave) {
    if (kind == Activation::kInt8) return choose_unpacking<R, G, true, false, true, true, Shares>(w);
  }
  return choose_unpacking<R, G, true, false, true, false, Shares>(w);
}

template <int R, int G, bool Shares>
Tile<G> choose_quantised(const PackedView& w, Activation kind) {
  switch (w.family) {
    case Family::kW4:
      if (w.nested) return choose_w4<R, G, true, true, Shares>(w, kind);
      return w.has_min ? choose_w4<R, G, false, true, Shares>(w, kind) : choose_w4<R, G, false, false, Shares>(w, kind);
    case Family::kW6: return choose_w6<R, G, Shares>(w, kind);
    default:
      if (w.has_min) return w.nested ? choose_w8<R, G, true, true, Shares>(w, kind) : choose_w8<R, G, false, true, Shares>(w, kind);
      return choose_w8<R, G, false, false, Shares>(w, kind);
  }
}

template <int R, int G>
Tile<G> choose_tile(const PackedView& w, Activation kind) {
  switch (w.family) {
    case Family::kF32: return tile_float<R, G, Family::kF32>;
    case Family::kF16: return tile_float<R, G, Family::kF16>;
    case Family::kBF16: return tile_float<R, G, Family::kBF16>;
    default: return w.fetch != nullptr ? choose_quantised<R, G, true>(w, kind) : choose_quantised<R, G, false>(w, kind);
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

// Of the next tile: at most R, the last two tiles of like size.
template <int R>
int tile_rows(int left) {
  return left >= 2 * R || left == R ? R : left > R ? (left + 1) / 2 : left;
}

// All rows [row, row_end); the groups stay in the first-level cache.
template <int R, int G>
void run_rows(PackedView w, const ActivationView& x, int row, int row_end, int group, const MatmulOutput& out, Fetching fetching) {
  while (row < row_end) {
    const int rows = tile_rows<R>(row_end - row);
    fetching.direct(&w);
    run_some<R, G>(rows, w, x, row, group, out);
    row += rows;
  }
}

constexpr int kUnpackBlocks = 256;  // of a group, at most: they shall stay in the second-level cache
constexpr int kExpandRows = 64;     // from so many on, unpacking a group of W4 at once pays: until then its bytes are waited for

// Groups from `group` on, as `Unpacked` blocks in `codes`.
template <typename Unpacked>
PackedView unpacked_view(const PackedView& w, int group, const uint8_t* codes) {
  PackedView view = w;
  view.group_bytes = Unpacked::bytes(w.blocks);
  view.data = codes - group * view.group_bytes;  // so that groups keep their numbers
  return view;
}

// All rows of G groups of W6 or W8, whose blocks unpacked are `To`: the first tile unpacks them for the others.
template <typename To, int R, int G>
void run_unpacked(const PackedView& w, const ActivationView& x, int row, int row_end, int group, const MatmulOutput& out, Beside* beside) {
  alignas(64) uint8_t codes[G * To::bytes(kUnpackBlocks)];
  PackedView packed = w, unpacked = unpacked_view<To>(w, group, codes);
  unpacked.expanded = true;
  const int rows = tile_rows<R>(row_end - row);
  if (rows < row_end - row) packed.unpacked = codes;
  Fetching fetching = Fetching::of<R, G>(w, row_end - row, group, beside);
  fetching.direct(&packed);
  run_some<R, G>(rows, packed, x, row, group, out);
  run_rows<R, G>(unpacked, x, row + rows, row_end, group, out, fetching);
}

template <int R, int G>
void run_groups(const PackedView& w, const ActivationView& x, int row, int row_end, int group, const MatmulOutput& out, Beside* beside) {
  const bool unpacks = w.family == Family::kW6 || (w.family == Family::kW8 && x.kind == Activation::kInt8);
  if (!unpacks || w.blocks > kUnpackBlocks) {
    run_rows<R, G>(w, x, row, row_end, group, out, Fetching::of<R, G>(w, row_end - row, group, beside));
  } else if (w.nested) {
    run_unpacked<Block<true, kCodes8, 2>, R, G>(w, x, row, row_end, group, out, beside);
  } else if (w.has_min) {
    run_unpacked<Block<false, kCodes8, 2>, R, G>(w, x, row, row_end, group, out, beside);
  } else {
    run_unpacked<Block<false, kCodes8, 1>, R, G>(w, x, row, row_end, group, out, beside);
  }
}

// `group` of w, of W4, with a byte per code, in `out`.
template <bool Nested, bool Min>
PackedView expand(const PackedView& w, int group, uint8_t* out) {
  using From = Block<Nested, kCodes4, 1 + Min>;
  using To = Block<Nested, kCodes8, 1 + Min>;
  const uint8_t* from = w.data + group * w.group_bytes;
  for (int b = 0; b < w.blocks; b++) {
    const uint8_t* codes = From::codes(from, b);
    uint8_t* to = out + (To::codes(out, b) - out);
    Dependent<Nested>::type::expand(codes, to);
    if (!Nested) {
      std::memcpy(to + kCodes8, codes + kCodes4, From::kScaleBytes);
    } else if (b % kNest == 0) {
      std::memcpy(to - kNestScales, codes - kNestScales, kNestScales);
    }
  }
  PackedView view = unpacked_view<To>(w, group, out);
  view.expanded = true;
  return view;
}

template <bool Nested, bool Min>
void expanded_matmul(const PackedView& w, const ActivationView& x, int row_begin, int row_end, int group_begin, int group_end,
                     const MatmulOutput& out) {
  alignas(64) uint8_t codes[Block<Nested, kCodes8, 1 + Min>::bytes(kUnpackBlocks)];
  Beside nothing({}, 1);
  for (int group = group_begin; group < group_end; group++) {
    const Fetching fetching = Fetching::of<kWideRows, 1>(w, row_end - row_begin, group, &nothing);
    run_rows<kWideRows, 1>(expand<Nested, Min>(w, group, codes), x, row_begin, row_end, group, out, fetching);
  }
}

inline bool expands(const PackedView& w, Activation kind, int rows) {
  return Expansion::kPays && w.family == Family::kW4 && kind == Activation::kInt8 && w.blocks <= kUnpackBlocks && rows >= kExpandRows;
}

void matmul(const PackedView& w, const ActivationView& x, int row_begin, int row_end, int group_begin, int group_end,
            const MatmulOutput& out, const FetchList& list) {
  const int rows = row_end - row_begin;
  if constexpr (Expansion::kPays) {
    if (expands(w, x.kind, rows)) {
      const auto expanded = w.nested ? expanded_matmul<true, true> : w.has_min ? expanded_matmul<false, true> : expanded_matmul<false, false>;
      return expanded(w, x, row_begin, row_end, group_begin, group_end, out);
    }
  }
  Beside beside(list, (group_end - group_begin) * ((rows + kNarrowRows - 1) / kNarrowRows));
  int group = group_begin;
  // Few rows are bound by memory and read one stream; many share each broadcast activation between two groups.
  if (rows > kNarrowRows) {
    for (; group + kWideGroups <= group_end; group += kWideGroups) {
      run_groups<kWideRows, kWideGroups>(w, x, row_begin, row_end, group, out, &beside);
    }
  }
  for (; group < group_end; group++) run_groups<kNarrowRows, 1>(w, x, row_begin, row_end, group, out, &beside);
}

int64_t lines_beside(const PackedView& w, Activation kind, int rows) {
  static_assert(kBesideLines == 0 || (kWideGroups == 1 && kWideRows == kNarrowRows), "matmul counts tiles of one kind");
  if (kBesideLines == 0 || rows <= kNarrowRows || kind == Activation::kFloat32 || expands(w, kind, rows)) return 0;
  return int64_t{kBesideLines} * w.blocks * w.groups * ((rows + kNarrowRows - 1) / kNarrowRows);
}
