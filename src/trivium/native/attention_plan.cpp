#include "attention_plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/kernels.h"
#include "pool.h"
#include "step.h"

namespace trivium {

namespace {

constexpr int kTileRows = 6;        // of most instruction sets' kernels: queries that are computed together
constexpr int kFetch = 2;           // what going through a tile's keys and values costs, in queries
constexpr double kMerging = 1.2;    // what computing tiles apart, and merging them, costs more, of a query's own cost
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

// Of the first `count` items. Those that wait for memory share tasks, since a thread fetches the keys of what it computes next.
std::vector<int> make_tasks(const std::vector<AttentionItem>& items, size_t count, int num_threads) {
  const auto tiles_of = [](const AttentionItem& item) { return item.queries() > kFewQueries ? 0 : item.tiles(); };
  int64_t total = 0, tiles = 0;
  for (size_t i = 0; i < count; i++) total += tiles_of(items[i]);
  std::vector<int> starts{0};
  for (size_t i = 0; i < count; i++) {
    const int own = tiles_of(items[i]);
    tiles += own;
    if (own == 0 || i + 1 == count || tiles_of(items[i + 1]) == 0 || tiles * kTasks * num_threads >= total) {
      starts.push_back(static_cast<int>(i + 1));
      tiles = 0;
    }
  }
  return starts;
}

double cost(const AttentionItem& item) { return static_cast<double>(item.tiles()) * (item.queries() + kFetch); }

// Which tasks are left of each thread's range, as the pool shares them out.
class TaskRanges {
 public:
  TaskRanges(int count, int num_threads) : next_(static_cast<size_t>(num_threads)), end_(next_.size()) {
    for (int i = 0; i < num_threads; i++) {
      next_[static_cast<size_t>(i)] = static_cast<size_t>(Pool::range_begin(count, i, num_threads));
      end_[static_cast<size_t>(i)] = static_cast<size_t>(Pool::range_begin(count, i + 1, num_threads));
    }
  }

  // The next task of a thread: one of its own, or another's.
  size_t take(size_t thread) {
    while (next_[thread] == end_[thread]) thread = (thread + 1) % next_.size();
    return next_[thread]++;
  }

 private:
  std::vector<size_t> next_, end_;
};

// When the last thread is done, if each takes the next task as soon as it can.
double time_of(const AttentionPlan& plan, int num_threads) {
  std::vector<double> busy(static_cast<size_t>(num_threads), 0.0);
  TaskRanges ranges(plan.num_tasks(), num_threads);
  for (int n = 0; n < plan.num_tasks(); n++) {
    const auto first = std::min_element(busy.begin(), busy.end());
    const size_t task = ranges.take(static_cast<size_t>(first - busy.begin()));
    for (int i = plan.task_starts[task]; i < plan.task_starts[task + 1]; i++) *first += cost(plan.items[static_cast<size_t>(i)]);
  }
  double total = std::accumulate(busy.begin(), busy.end(), 0.0);  // tiles that are computed apart fill the gaps
  for (size_t i = static_cast<size_t>(plan.num_whole()); i < plan.items.size(); i++) {
    const AttentionItem& item = plan.items[i];
    total += cost(item) + item.tiles() * item.queries() * kMerging;
  }
  return std::max(*std::max_element(busy.begin(), busy.end()), total / num_threads);
}

bool can_be_split(const AttentionItem& item) { return item.tiles() > 1; }

int whole_rows(int queries) { return (queries + kTileRows - 1) / kTileRows * kTileRows; }

}  // namespace

// Large items read keys and values least often, smaller ones leave threads with equal shares. Where even those do not, the
// last items' tiles are computed apart, or those of all.
AttentionPlan plan_attention(const StepInput& in, int num_kv_heads, int group, int window, int num_threads) {
  AttentionPlan best;
  double best_time = 0.0;
  int largest = kTileRows;
  for (int most = kMaxQueries; most >= kTileRows; most = std::min(most, largest) - kTileRows) {
    AttentionPlan plan;
    plan.items = make_items(in, num_kv_heads, group, window, most);
    for (const AttentionItem& item : plan.items) largest = std::max(largest, whole_rows(item.queries()));
    const size_t count = plan.items.size(), threads = static_cast<size_t>(num_threads);
    for (const size_t num_split : {size_t{0}, count % threads, count}) {
      if (!std::all_of(plan.items.end() - static_cast<int64_t>(num_split), plan.items.end(), can_be_split)) break;
      plan.task_starts = make_tasks(plan.items, count - num_split, num_threads);
      const double time = time_of(plan, num_threads);
      if (!best.items.empty() && time >= best_time) continue;
      best = plan;
      best_time = time;
    }
  }
  return best;
}

}  // namespace trivium
