// The attention of a step: which rows, heads and key tiles are computed together.
#include <algorithm>
#include <vector>

#include "step.h"

namespace trivium {

namespace {

// Query rows of one sequence and KV head: (position, head of the group) pairs, position-major, [begin, end).
struct Item {
  int32_t sequence, head, begin, end, first_tile, end_tile;
};

// Queries of an item, and the keys that they may see.
struct Queries {
  std::vector<float> q;
  std::vector<int16_t> q_codes;
  float q_scales[kMaxQueries];
  int32_t first_key[kMaxQueries], last_key[kMaxQueries];
};

// The softmax of an item's queries over the tiles so far.
struct Sums {
  std::vector<float> acc;
  float max[kMaxQueries], sum[kMaxQueries];

  void reset(int count, int head_dim_padded) {
    std::fill_n(max, count, kNoKey);
    std::fill_n(sum, count, 0.0f);
    acc.assign(static_cast<size_t>(count) * head_dim_padded, 0.0f);
  }
};

struct Geometry {
  const StepInput& in;
  const ModelConfig& config;
  int window;
  int group;  // query heads per KV head
  const float* qkv;
  const int16_t* q_codes;  // for keys of integers
  const float* q_scales;

  int position(int32_t s, int pair) const {
    const int rows = in.query_starts[s + 1] - in.query_starts[s];
    return in.context_lens[s] - rows + pair / group;
  }
  int first_key(int position) const { return window > 0 ? std::max(0, position - window + 1) : 0; }

  std::vector<Item> items() const {
    std::vector<Item> found;
    for (int32_t s = 0; s < in.num_sequences; s++) {
      const int pairs = (in.query_starts[s + 1] - in.query_starts[s]) * group;
      for (int32_t h = 0; h < config.num_kv_heads; h++) {  // one after the other: the next rows find a head's keys and values nearby
        for (int begin = 0; begin < pairs; begin += kMaxQueries) {
          const int end = std::min(pairs, begin + kMaxQueries);
          const int first_tile = first_key(position(s, begin)) / kTile, end_tile = position(s, end - 1) / kTile + 1;
          found.push_back({s, h, begin, end, first_tile, end_tile});
        }
      }
    }
    return found;
  }

  int64_t row(const Item& item, int pair) const { return in.query_starts[item.sequence] + pair / group; }
  int head(const Item& item, int pair) const { return item.head * group + pair % group; }

  float* result(float* attended, const Item& item, int pair) const {
    return attended + row(item, pair) * config.q_size() + head(item, pair) * config.head_dim;
  }
};

void copy_floats(const Geometry& g, const Item& item, Queries* out) {
  const int padded = g.config.head_dim_padded(), count = item.end - item.begin, width = g.config.q_size() + 2 * g.config.kv_size();
  out->q.assign(static_cast<size_t>(count) * padded, 0.0f);
  for (int i = 0; i < count; i++) {
    const float* q = g.qkv + g.row(item, item.begin + i) * width + g.head(item, item.begin + i) * g.config.head_dim;
    std::copy_n(q, g.config.head_dim, out->q.data() + static_cast<int64_t>(i) * padded);
  }
}

void copy_codes(const Geometry& g, const Item& item, Queries* out) {
  const int padded = g.config.head_dim_padded(), count = item.end - item.begin;
  out->q_codes.resize(static_cast<size_t>(count) * padded);
  for (int i = 0; i < count; i++) {
    const int64_t at = g.row(item, item.begin + i) * g.config.num_heads + g.head(item, item.begin + i);
    std::copy_n(g.q_codes + at * padded, padded, out->q_codes.data() + static_cast<int64_t>(i) * padded);
    out->q_scales[i] = g.q_scales[at];
  }
}

void load_queries(const Geometry& g, const Item& item, KvType type, Queries* out) {
  const int count = item.end - item.begin;
  if (has_codes(type)) {
    copy_codes(g, item, out);
  } else {
    copy_floats(g, item, out);
  }
  for (int i = 0; i < count; i++) {
    out->last_key[i] = g.position(item.sequence, item.begin + i);
    out->first_key[i] = g.first_key(out->last_key[i]);
  }
}

void run_attention(const AttentionArgs& args, KvType type) {
  switch (type) {
    case KvType::kFloat16: return kernels().attention_f16(args);
    case KvType::kFloat32: return kernels().attention_f32(args);
    case KvType::kInt8: return kernels().attention_i8(args);
    case KvType::kInt16: return kernels().attention_i16(args);
  }
}

// Where an item's keys and values are.
AttentionArgs place(const Geometry& g, const Item& item, const KvCache& cache, int layer) {
  AttentionArgs args{};
  cache.locate(layer, item.head, &args);
  args.last = g.position(item.sequence, item.end - 1);
  args.blocks = g.in.block_tables + static_cast<int64_t>(item.sequence) * g.in.block_table_width;
  args.tile_begin = item.first_tile;
  args.tile_end = item.end_tile;
  return args;
}

// `next`: what this thread computes after it, or nullptr.
void attend_item(const Geometry& g, const Item& item, const Item* next, const KvCache& cache, int layer, Sums* sums) {
  thread_local Queries queries;
  load_queries(g, item, cache.type(), &queries);
  sums->reset(item.end - item.begin, g.config.head_dim_padded());
  AttentionArgs args = place(g, item, cache, layer), after;
  if (next != nullptr) {
    after = place(g, *next, cache, layer);
    args.after = &after;
  }
  args.q = queries.q.data();
  args.q_codes = queries.q_codes.data();
  args.q_scales = queries.q_scales;
  args.last_key = queries.last_key;
  args.first_key = queries.first_key;
  args.queries = item.end - item.begin;
  args.max = sums->max;
  args.sum = sums->sum;
  args.acc = sums->acc.data();
  run_attention(args, cache.type());
}

void store_results(const Geometry& g, const Item& item, const Sums& sums, float* attended) {
  const int padded = g.config.head_dim_padded();
  for (int i = 0; i < item.end - item.begin; i++) {
    float* out = g.result(attended, item, item.begin + i);
    const float inverse = 1.0f / sums.sum[i];
    for (int d = 0; d < g.config.head_dim; d++) out[d] = sums.acc[static_cast<size_t>(i) * padded + d] * inverse;
  }
}

// a := the softmax over the tiles of both; `a` comes first.
void merge(const Geometry& g, int count, Sums* a, const Sums& b) {
  const int padded = g.config.head_dim_padded();
  for (int i = 0; i < count; i++) {
    const int64_t at = static_cast<int64_t>(i) * padded;
    kernels().merge_attention(&a->max[i], &a->sum[i], a->acc.data() + at, &b.max[i], &b.sum[i], b.acc.data() + at, padded);
  }
}

constexpr int kWave = 32;  // tiles per thread: what is kept of them stays small, however long the contexts are

// Few items but long contexts: every tile is a task of its own, and what came of them is merged in the order in which a single
// task would have merged it, to the same bits.
void attend_split(const Geometry& g, const std::vector<Item>& items, const KvCache& cache, int layer, float* attended) {
  Pool& pool = Pool::instance();
  const int count = static_cast<int>(items.size()), wave = std::max(1, kWave * pool.num_threads() / count);
  std::vector<Sums> totals(items.size()), partial(items.size() * wave);
  for (int n = 0; n < count; n++) totals[n].reset(items[n].end - items[n].begin, g.config.head_dim_padded());
  int most = 0;
  for (const Item& item : items) most = std::max(most, item.end_tile - item.first_tile);
  for (int offset = 0; offset < most; offset += wave) {
    std::vector<Item> tiles;
    std::vector<int> starts;  // of each item among the tiles
    for (const Item& item : items) {
      starts.push_back(static_cast<int>(tiles.size()));
      for (int t = item.first_tile + offset; t < std::min(item.end_tile, item.first_tile + offset + wave); t++) {
        tiles.push_back(item);
        tiles.back().first_tile = t;
        tiles.back().end_tile = t + 1;
      }
    }
    starts.push_back(static_cast<int>(tiles.size()));
    pool.run(static_cast<int>(tiles.size()), [&](int i) { attend_item(g, tiles[i], nullptr, cache, layer, &partial[i]); });
    for (int n = 0; n < count; n++) {
      for (int t = starts[n]; t < starts[n + 1]; t++) merge(g, items[n].end - items[n].begin, &totals[n], partial[t]);
    }
  }
  for (int n = 0; n < count; n++) store_results(g, items[n], totals[n], attended);
}

constexpr int kFewQueries = 12;  // an item with no more waits for memory
constexpr int kTasks = 4;        // per thread, of such items: with more, too few know what comes next; with fewer, threads wait

// Where tasks begin, and the end. Items that wait for memory share tasks, since a thread fetches the keys of what it computes next.
std::vector<int> task_starts(const std::vector<Item>& items, int num_threads) {
  const auto tiles_of = [](const Item& item) { return item.end - item.begin > kFewQueries ? 0 : item.end_tile - item.first_tile; };
  int64_t total = 0, tiles = 0;
  for (const Item& item : items) total += tiles_of(item);
  std::vector<int> starts{0};
  for (size_t i = 0; i < items.size(); i++) {
    const int own = tiles_of(items[i]);
    tiles += own;
    if (own == 0 || i + 1 == items.size() || tiles_of(items[i + 1]) == 0 || tiles * kTasks * num_threads >= total) {
      starts.push_back(static_cast<int>(i + 1));
      tiles = 0;
    }
  }
  return starts;
}

}  // namespace

void Stepper::attend(const StepInput& in, int layer) {
  const Geometry g{in, config_, config_.windows[static_cast<size_t>(layer)], config_.num_heads / config_.num_kv_heads,
                   qkv_.data(), q_codes_.data(), q_scales_.data()};
  const std::vector<Item> items = g.items();
  Pool& pool = Pool::instance();
  int tiles = 0;
  for (const Item& item : items) tiles = std::max(tiles, item.end_tile - item.first_tile);
  if (tiles > 1 && static_cast<int>(items.size()) < 4 * pool.num_threads()) {
    attend_split(g, items, cache_, layer, attended_.data());
    return;
  }
  const std::vector<int> starts = task_starts(items, pool.num_threads());
  pool.run(static_cast<int>(starts.size()) - 1, [&](int task) {
    thread_local Sums sums;
    for (int i = starts[task]; i < starts[task + 1]; i++) {
      attend_item(g, items[i], i + 1 < starts[task + 1] ? &items[i + 1] : nullptr, cache_, layer, &sums);
      store_results(g, items[i], sums, attended_.data());
    }
  });
}

}  // namespace trivium
