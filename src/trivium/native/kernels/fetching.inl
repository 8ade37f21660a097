// What tiles fetch while they multiply. Included before matmul.inl, in each instruction set's translation unit, inside its anonymous namespace.

constexpr int kPrefetch = 8192;  // bytes ahead in the weight stream; 6 to 12 KB measured best where a thread reads 25 GB/s

// Tiles that run one after the other on the same groups share the fetching of the next ones, in so many parts. If the first fetched all,
// it would wait for memory, which would idle while the others multiply.
constexpr int kShares = 2;

// Lines of a share, per block of so many bytes in each of `groups`.
constexpr int share_lines(int groups, int64_t block_bytes) {
  return static_cast<int>((groups * block_bytes + kShares * 64 - 1) / (kShares * 64));
}

// While a tile multiplies block `b`, of `Bytes` as it is packed, at `w`. `Beside`: also of view.beside.
template <bool Shares, bool Beside, int G, int Bytes>
inline void prefetch_block(const PackedView& view, const uint8_t* w, int64_t step, int b) {
  if constexpr (Beside) {
    const uint8_t* from = view.beside + b * view.beside_step;
    TRIVIUM_UNROLL for (int line = 0; line < kBesideLines; line++) __builtin_prefetch(from + 64 * line);
  }
  if constexpr (Shares) {
    const uint8_t* from = view.fetch + static_cast<int64_t>(b) * (G * Bytes);
    constexpr int kLines = share_lines(G, Bytes);
    TRIVIUM_UNROLL for (int line = 0; line < kLines; line++) __builtin_prefetch(from + 64 * line);
  } else {
    constexpr int kAhead = kPrefetch / G;
    // Past the end of a group lies the next one, which with two is being read already: what follows them both is meant.
    const uint8_t* from = w + kAhead + (G > 1 && b + kAhead / Bytes >= view.blocks ? (G - 1) * step : 0);
    TRIVIUM_UNROLL for (int g = 0; g < G; g++) {
      TRIVIUM_UNROLL for (int line = 0; line < Bytes; line += 64) __builtin_prefetch(from + g * step + line);
    }
  }
}

// The runs of a list, spread evenly over so many tiles.
class Beside {
 public:
  Beside(const FetchList& list, int tiles) : list_(list), tiles_(tiles) {}

  // For the next tile. Those of its runs lie together, mostly. If there are none it fetches `own` again, which is there.
  void direct(PackedView* tile, const uint8_t* own) {
    const int64_t count = list_.count, first = count * tile_ / tiles_, end = count * (tile_ + 1) / tiles_;
    tile_++;
    tile->beside = first == end ? own : list_.base + list_.offsets[first];
    const int64_t step = ((end - first) * list_.lines * 64 + tile->blocks - 1) / tile->blocks;
    tile->beside_step = step < kBesideLines * 64 ? step : kBesideLines * 64;
  }

 private:
  FetchList list_;
  int tiles_, tile_ = 0;
};

// What each of the tiles of some rows fetches: the last ones the groups after [group, group + G), for what is fetched early is gone by
// the time it is wanted; one alone its own.
class Fetching {
 public:
  template <int R, int G>
  static Fetching of(const PackedView& packed, int rows, int group, Beside* beside) {
    const uint8_t* own = packed.data + group * packed.group_bytes;
    return {own, own + G * packed.group_bytes, 64 * share_lines(G, packed.group_bytes / packed.blocks), (rows + R - 1) / R, beside};
  }

  // The next tile.
  void direct(PackedView* tile) {
    const int share = kShares - tiles_left_--;
    tile->fetch = alone_ ? nullptr : share < 0 ? own_ : next_ + share * share_bytes_;
    if (kBesideLines > 0 && !alone_) beside_->direct(tile, own_);
  }

 private:
  Fetching(const uint8_t* own, const uint8_t* next, int share_bytes, int tiles, Beside* beside)
      : own_(own), next_(next), beside_(beside), share_bytes_(share_bytes), tiles_left_(tiles), alone_(tiles == 1) {}

  const uint8_t *own_, *next_;
  Beside* beside_;
  int share_bytes_, tiles_left_;
  bool alone_;
};
