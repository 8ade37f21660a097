// The attention of a step, as attention_plan.h shares it out.
#include <algorithm>
#include <utility>
#include <vector>

#include "attention_plan.h"
#include "step.h"

namespace trivium {

namespace {

using Item = AttentionItem;

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

  int64_t row(const Item& item, int pair) const { return in.query_starts[item.sequence] + pair / group; }
  int head(const Item& item, int pair) const { return item.head * group + pair % group; }

  float* result(float* attended, const Item& item, int pair) const {
    return attended + row(item, pair) * config.q_size() + head(item, pair) * config.head_dim;
  }
};

void copy_floats(const Geometry& g, const Item& item, Queries* out) {
  const int padded = g.config.head_dim_padded(), count = item.queries(), width = g.config.q_size() + 2 * g.config.kv_size();
  out->q.assign(static_cast<size_t>(count) * padded, 0.0f);
  for (int i = 0; i < count; i++) {
    const float* q = g.qkv + g.row(item, item.begin + i) * width + g.head(item, item.begin + i) * g.config.head_dim;
    std::copy_n(q, g.config.head_dim, out->q.data() + static_cast<int64_t>(i) * padded);
  }
}

void copy_codes(const Geometry& g, const Item& item, Queries* out) {
  const int padded = g.config.head_dim_padded(), count = item.queries();
  out->q_codes.resize(static_cast<size_t>(count) * padded);
  for (int i = 0; i < count; i++) {
    const int64_t at = g.row(item, item.begin + i) * g.config.num_heads + g.head(item, item.begin + i);
    std::copy_n(g.q_codes + at * padded, padded, out->q_codes.data() + static_cast<int64_t>(i) * padded);
    out->q_scales[i] = g.q_scales[at];
  }
}

void load_queries(const Geometry& g, const Item& item, KvType type, Queries* out) {
  const int count = item.queries();
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

// `count` indices in about so many ranges of neighbours.
struct Ranges {
  int count, size, num;

  Ranges(int count, int about) : count(count), size((count + std::max(1, about) - 1) / std::max(1, about)), num((count + size - 1) / size) {}
  int begin(int i) const { return i * size; }
  int end(int i) const { return std::min(count, (i + 1) * size); }
};

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
  sums->reset(item.queries(), g.config.head_dim_padded());
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
  args.queries = item.queries();
  args.max = sums->max;
  args.sum = sums->sum;
  args.acc = sums->acc.data();
  run_attention(args, cache.type());
}

void store_result(const Geometry& g, const Item& item, int query, const Sums& sums, float* attended) {
  const float* acc = sums.acc.data() + static_cast<size_t>(query) * g.config.head_dim_padded();
  float* out = g.result(attended, item, item.begin + query);
  const float inverse = 1.0f / sums.sum[query];
  for (int d = 0; d < g.config.head_dim; d++) out[d] = acc[d] * inverse;
}

// A query's softmax in `a` becomes that over the tiles of both; `a` comes first.
void merge(const Geometry& g, int query, Sums* a, const Sums& b) {
  const int padded = g.config.head_dim_padded();
  const int64_t at = static_cast<int64_t>(query) * padded;
  kernels().merge_attention(&a->max[query], &a->sum[query], a->acc.data() + at, &b.max[query], &b.sum[query], b.acc.data() + at, padded);
}

// The next tiles of each item, one entry per tile, and where each item's begin among them.
struct Wave {
  std::vector<Item> tiles;
  std::vector<int> starts;

  Wave(const std::vector<Item>& items, int offset, int most) {
    for (const Item& item : items) {
      starts.push_back(static_cast<int>(tiles.size()));
      for (int t = item.first_tile + offset; t < std::min(item.end_tile, item.first_tile + offset + most); t++) {
        tiles.push_back(item);
        tiles.back().first_tile = t;
        tiles.back().end_tile = t + 1;
      }
    }
    starts.push_back(static_cast<int>(tiles.size()));
  }
};

constexpr int kWave = 32;       // tiles per thread: what is kept of them stays small, however long the contexts are
constexpr int kWaveTasks = 6;   // per thread: neighbouring tiles share one, since a thread fetches the keys of what it computes next
constexpr int kFewMerges = 64;  // not worth a task of their own

// Whole items, by the plan's tasks.
void attend_whole(const Geometry& g, const AttentionPlan& plan, int task, const KvCache& cache, int layer, float* attended) {
  thread_local Sums sums;
  for (int i = plan.task_starts[task]; i < plan.task_starts[task + 1]; i++) {
    const Item& item = plan.items[i];
    attend_item(g, item, i + 1 < plan.task_starts[task + 1] ? &item + 1 : nullptr, cache, layer, &sums);
    for (int query = 0; query < item.queries(); query++) store_result(g, item, query, sums, attended);
  }
}

// The same, and beside them the items whose tiles are computed one by one. What came of those is merged in the order in which a
// single task would have merged it, to the same bits.
void attend_split(const Geometry& g, const AttentionPlan& plan, const KvCache& cache, int layer, float* attended) {
  Pool& pool = Pool::instance();
  const std::vector<Item> items(plan.items.begin() + plan.num_whole(), plan.items.end());
  const int count = static_cast<int>(items.size()), most = std::max(1, kWave * pool.num_threads() / count);
  thread_local std::vector<Sums> kept_totals, kept_partial;
  std::vector<Sums>&totals = kept_totals, &partial = kept_partial;  // of this thread, for all
  totals.resize(std::max(totals.size(), items.size()));
  partial.resize(std::max(partial.size(), items.size() * most));
  std::vector<std::pair<int, int>> queries;  // of which item, and which of its
  int num_tiles = 0;
  for (int n = 0; n < count; n++) {
    totals[n].reset(items[n].queries(), g.config.head_dim_padded());
    num_tiles = std::max(num_tiles, items[n].tiles());
    for (int i = 0; i < items[n].queries(); i++) queries.emplace_back(n, i);
  }
  for (int offset = 0; offset < num_tiles; offset += most) {
    const Wave wave(items, offset, most);
    const Ranges tiles(static_cast<int>(wave.tiles.size()), kWaveTasks * pool.num_threads());
    const int num_whole = offset == 0 ? plan.num_tasks() : 0;
    pool.run(num_whole + tiles.num, [&](int task) {
      if (task < num_whole) {
        attend_whole(g, plan, task, cache, layer, attended);
        return;
      }
      const int end = tiles.end(task - num_whole);
      for (int i = tiles.begin(task - num_whole); i < end; i++) {
        attend_item(g, wave.tiles[i], i + 1 < end ? &wave.tiles[i + 1] : nullptr, cache, layer, &partial[i]);
      }
    });
    const int num_merges = static_cast<int>(queries.size()) * std::min(most, num_tiles - offset);
    const Ranges merged(static_cast<int>(queries.size()), std::min(2 * pool.num_threads(), num_merges / kFewMerges));
    pool.run(merged.num, [&](int task) {
      for (int q = merged.begin(task); q < merged.end(task); q++) {
        const auto [n, i] = queries[q];
        for (int t = wave.starts[n]; t < wave.starts[n + 1]; t++) merge(g, i, &totals[n], partial[t]);
      }
    });
  }
  for (const auto& [n, i] : queries) store_result(g, items[n], i, totals[n], attended);
}

}  // namespace

Stepper::Attention& Stepper::attention_of(const StepInput& in, int layer) {
  const int window = config_.windows[static_cast<size_t>(layer)], group = config_.num_heads / config_.num_kv_heads;
  auto found = attentions_.find(window);
  if (found == attentions_.end()) {
    const int threads = Pool::instance().num_threads();
    found = attentions_.emplace(window, Attention{plan_attention(in, config_.num_kv_heads, group, window, threads), {}}).first;
  }
  return found->second;
}

// What attention of `layer` will read is fetched by the products from that of the layer before it on.
void Stepper::begin_fetching(const StepInput& in, int layer) {
  ahead_.clear();
  if (layer == config_.num_layers) return;
  const Layer &before = model_.layers[static_cast<size_t>(layer - 1)], &own = model_.layers[static_cast<size_t>(layer)];
  const auto lines_of = [&](const Linear& linear) { return lines_beside(linear, config_.activation, in.num_rows); };
  int64_t lines = lines_of(before.attention_output) + lines_of(own.qkv);
  const bool moe = config_.moe_layers[static_cast<size_t>(layer - 1)];
  if (!moe || config_.shared_size > 0) {
    const FeedForward& ffn = moe ? before.shared : before.dense;
    lines += lines_of(ffn.gate_up) + lines_of(ffn.down);
  }
  if (lines == 0) return;
  Attention& attention = attention_of(in, layer);
  if (attention.runs.starts.empty()) attention.runs = list_kv_runs(in, attention.plan, cache_, Pool::instance().num_threads());
  AttentionArgs args{};
  cache_.locate(layer, 0, &args);
  ahead_.begin(attention.runs, args.cache, lines);
}

KvShare Stepper::beside(const Linear& linear, int rows) { return ahead_.take(lines_beside(linear, config_.activation, rows)); }

void Stepper::attend(const StepInput& in, int layer) {
  const int window = config_.windows[static_cast<size_t>(layer)], group = config_.num_heads / config_.num_kv_heads;
  Pool& pool = Pool::instance();
  const AttentionPlan& plan = attention_of(in, layer).plan;
  const Geometry g{in, config_, window, group, qkv_.data(), q_codes_.data(), q_scales_.data()};
  if (plan.num_whole() == static_cast<int>(plan.items.size())) {
    pool.run(plan.num_tasks(), [&](int task) { attend_whole(g, plan, task, cache_, layer, attended_.data()); });
  } else {
    attend_split(g, plan, cache_, layer, attended_.data());
  }
}

}  // namespace trivium
