#include "attention_plan.h"

#include <algorithm>
#include <utility>

#include "kernels/kernels.h"
#include "step.h"

namespace trivium {

namespace {

constexpr int kTileRows = 6;        // of most instruction sets' kernels: queries that are computed together
constexpr int kFetch = 2;           // what going through a tile's keys and values costs, in queries
constexpr float kSplitCost = 1.4f;  // of tiles that are computed apart, and merged, against those of one item
constexpr int kFewQueries = 12;     // an item with no more waits for memory
constexpr int kTasks = 4;           // per thread, of such items: with more, too few know what comes next; with fewer, threads wait

// Items of at most `most` queries.
std::vector<AttentionItem> make_items(const StepInput& in, int num_kv_heads, int group, int window, int most) {
  std::vector<AttentionItem> items;
  for (int32_t s = 0; s < in.num_sequences; s++) {
    const int rows = in.query_starts[s + 1] - in.query_starts[s], first_position = in.context_lens[s] - rows;
    const int pairs = rows * group;
    for (int32_t h = 0; h < num_kv_heads; h++) {  // one after the other: the next rows find a head's keys and values nearby
      for (int begin = 0; begin < pairs; begin += most) {
        const int end = std::min(pairs, begin + most);
        const int first_key = window > 0 ? std::max(0, first_position + begin / group - window + 1) : 0;
        const int last_key = first_position + (end - 1) / group;
        items.push_back({s, h, begin, end, first_key / kTile, last_key / kTile + 1});
      }
    }
  }
  return items;
}

// Items that wait for memory share tasks, since a thread fetches the keys of what it computes next.
std::vector<int> make_tasks(const std::vector<AttentionItem>& items, int num_threads) {
  const auto tiles_of = [](const AttentionItem& item) { return item.queries() > kFewQueries ? 0 : item.tiles(); };
  int64_t total = 0, tiles = 0;
  for (const AttentionItem& item : items) total += tiles_of(item);
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

int64_t cost(const AttentionItem& item) { return static_cast<int64_t>(item.tiles()) * (item.queries() + kFetch); }

// When the last thread is done, if each takes the next task as soon as it can.
int64_t time_of(const AttentionPlan& plan, int num_threads) {
  std::vector<int64_t> busy(static_cast<size_t>(num_threads), 0);
  for (size_t task = 0; task + 1 < plan.task_starts.size(); task++) {
    int64_t& first = *std::min_element(busy.begin(), busy.end());
    for (int i = plan.task_starts[task]; i < plan.task_starts[task + 1]; i++) first += cost(plan.items[static_cast<size_t>(i)]);
  }
  return *std::max_element(busy.begin(), busy.end());
}

}  // namespace

// Large items read keys and values least often, smaller ones leave threads with equal shares. If even those do not, tiles are
// computed apart.
AttentionPlan plan_attention(const StepInput& in, int num_kv_heads, int group, int window, int num_threads) {
  AttentionPlan best;
  int64_t best_time = 0, whole_cost = 0;
  int largest = kTileRows, most_tiles = 0;
  for (int most = kMaxQueries; most >= kTileRows; most = std::min(most, largest) - kTileRows) {
    AttentionPlan plan;
    plan.items = make_items(in, num_kv_heads, group, window, most);
    plan.task_starts = make_tasks(plan.items, num_threads);
    const int64_t time = time_of(plan, num_threads);
    if (most == kMaxQueries) {
      for (const AttentionItem& item : plan.items) {
        whole_cost += cost(item);
        most_tiles = std::max(most_tiles, item.tiles());
        largest = std::max(largest, (item.queries() + kTileRows - 1) / kTileRows * kTileRows);
      }
    } else if (time >= best_time) {
      continue;
    }
    best = std::move(plan);
    best_time = time;
  }
  best.split = most_tiles > 1 && static_cast<float>(best_time) > kSplitCost * static_cast<float>(whole_cost) / static_cast<float>(num_threads);
  return best;
}

}  // namespace trivium
