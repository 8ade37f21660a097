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

// Queries of an item with the state of their softmax.
struct Queries {
  std::vector<float> q, acc;
  std::vector<int16_t> q_codes;
  float q_scales[kMaxQueries];
  float max[kMaxQueries], sum[kMaxQueries];
  int32_t first_key[kMaxQueries], last_key[kMaxQueries];

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
      for (int begin = 0; begin < pairs; begin += kMaxQueries) {
        const int end = std::min(pairs, begin + kMaxQueries);
        const int first_tile = first_key(position(s, begin)) / kTile, end_tile = position(s, end - 1) / kTile + 1;
        for (int32_t h = 0; h < config.num_kv_heads; h++) found.push_back({s, h, begin, end, first_tile, end_tile});
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
  out->reset(count, g.config.head_dim_padded());
}

void run_attention(const AttentionArgs& args, KvType type) {
  switch (type) {
    case KvType::kFloat16: return kernels().attention_f16(args);
    case KvType::kFloat32: return kernels().attention_f32(args);
    case KvType::kInt8: return kernels().attention_i8(args);
    case KvType::kInt16: return kernels().attention_i16(args);
  }
}

void attend_item(const Geometry& g, const Item& item, const KvCache& cache, int layer, Queries* queries) {
  AttentionArgs args{};
  cache.locate(layer, item.head, &args);
  args.q = queries->q.data();
  args.q_codes = queries->q_codes.data();
  args.q_scales = queries->q_scales;
  args.last_key = queries->last_key;
  args.first_key = queries->first_key;
  args.queries = item.end - item.begin;
  args.blocks = g.in.block_tables + static_cast<int64_t>(item.sequence) * g.in.block_table_width;
  args.tile_begin = item.first_tile;
  args.tile_end = item.end_tile;
  args.max = queries->max;
  args.sum = queries->sum;
  args.acc = queries->acc.data();
  run_attention(args, cache.type());
}

void store_results(const Geometry& g, const Item& item, const Queries& queries, float* attended) {
  const int padded = g.config.head_dim_padded();
  for (int i = 0; i < item.end - item.begin; i++) {
    float* out = g.result(attended, item, item.begin + i);
    const float inverse = 1.0f / queries.sum[i];
    for (int d = 0; d < g.config.head_dim; d++) out[d] = queries.acc[static_cast<size_t>(i) * padded + d] * inverse;
  }
}

// Few items but long contexts: every tile is a task of its own, and partial results are merged in the order in which a single
// task would have merged them, to the same bits.
void attend_split(const Geometry& g, const std::vector<Item>& items, const KvCache& cache, int layer, float* attended) {
  std::vector<Item> tiles;
  std::vector<size_t> starts;
  for (const Item& item : items) {
    starts.push_back(tiles.size());
    for (int t = item.first_tile; t < item.end_tile; t++) {
      tiles.push_back(item);
      tiles.back().first_tile = t;
      tiles.back().end_tile = t + 1;
    }
  }
  starts.push_back(tiles.size());
  std::vector<Queries> partial(tiles.size());
  Pool::instance().run(static_cast<int>(tiles.size()), [&](int i) {
    load_queries(g, tiles[i], cache.type(), &partial[i]);
    attend_item(g, tiles[i], cache, layer, &partial[i]);
  });
  const int padded = g.config.head_dim_padded();
  for (size_t n = 0; n < items.size(); n++) {
    Queries total;
    const int count = items[n].end - items[n].begin;
    total.reset(count, padded);
    for (size_t t = starts[n]; t < starts[n + 1]; t++) {
      for (int i = 0; i < count; i++) {
        kernels().merge_attention(&total.max[i], &total.sum[i], total.acc.data() + static_cast<int64_t>(i) * padded, &partial[t].max[i],
                                  &partial[t].sum[i], partial[t].acc.data() + static_cast<int64_t>(i) * padded, padded);
      }
    }
    store_results(g, items[n], total, attended);
  }
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
  pool.run(static_cast<int>(items.size()), [&](int i) {
    thread_local Queries queries;
    load_queries(g, items[i], cache_.type(), &queries);
    attend_item(g, items[i], cache_, layer, &queries);
    store_results(g, items[i], queries, attended_.data());
  });
}

}  // namespace trivium
