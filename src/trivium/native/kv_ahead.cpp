#include "kv_ahead.h"

#include <algorithm>

#include "attention_plan.h"
#include "kv_cache.h"
#include "pool.h"
#include "step.h"

namespace trivium {

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kMostLines = (int64_t{4} << 20) / kLine;  // of a layer: what is fetched early must still be there when it is read

// The thread whose range of a loop over `count` indices `index` is in.
int thread_of(int index, int count, int threads) {
  int thread = 0;
  while (index >= Pool::range_begin(count, thread + 1, threads)) thread++;
  return thread;
}

void add_runs(const StepInput& in, const AttentionItem& item, const KvCache& cache, KvRuns* runs) {
  AttentionArgs args{};
  cache.locate(0, item.head, &args);
  runs->lines = static_cast<int>((args.subtile_bytes + kLine - 1) / kLine);
  const int last_key = in.context_lens[item.sequence] - 1;
  const int32_t* blocks = in.block_tables + static_cast<int64_t>(item.sequence) * in.block_table_width;
  for (int tile = item.first_tile; tile < item.end_tile; tile++) {
    for (const int64_t part : {args.k_offset, args.v_offset}) {
      for (int key = tile * kTile; key <= std::min(last_key, (tile + 1) * kTile - 1); key += kSubtile) {
        const int64_t within = key % args.block_size / kSubtile * args.subtile_bytes;
        runs->offsets.push_back(blocks[key / args.block_size] * args.block_stride + part + within);
      }
    }
  }
}

}  // namespace

KvRuns list_kv_runs(const StepInput& in, const AttentionPlan& plan, const KvCache& cache, int num_threads) {
  KvRuns runs;
  for (int thread = 0; thread < num_threads; thread++) {
    runs.starts.push_back(static_cast<int32_t>(runs.offsets.size()));
    const int begin = Pool::range_begin(plan.num_tasks(), thread, num_threads);
    const int end = Pool::range_begin(plan.num_tasks(), thread + 1, num_threads);
    for (int i = plan.task_starts[begin]; i < plan.task_starts[end]; i++) {
      if (plan.items[i].queries() <= kFewQueries) add_runs(in, plan.items[i], cache, &runs);
    }
  }
  runs.starts.push_back(static_cast<int32_t>(runs.offsets.size()));
  return runs;
}

FetchList KvShare::of_task(int task, int tasks) const {
  if (runs == nullptr) return {};
  const int threads = static_cast<int>(runs->starts.size()) - 1, thread = thread_of(task, tasks, threads);
  const int first = Pool::range_begin(tasks, thread, threads), last = Pool::range_begin(tasks, thread + 1, threads);
  const auto run_at = [&](int index) {
    const double fraction = begin + (end - begin) * (index - first) / (last - first);
    return runs->starts[thread] + static_cast<int>(fraction * (runs->starts[thread + 1] - runs->starts[thread]));
  };
  const int from = run_at(task), to = run_at(task + 1);
  return {layer, runs->offsets.data() + from, to - from, runs->lines};
}

void KvAhead::begin(const KvRuns& runs, const uint8_t* layer, int64_t lines) {
  const int64_t wanted = static_cast<int64_t>(runs.offsets.size()) * runs.lines;
  clear();
  if (wanted == 0 || lines == 0) return;
  rest_ = {&runs, layer, 0.0, std::min(1.0, static_cast<double>(std::min(lines, kMostLines)) / static_cast<double>(wanted))};
  lines_left_ = lines;
}

KvShare KvAhead::take(int64_t lines) {
  lines = std::min(lines, lines_left_);
  if (lines == 0) return {};
  KvShare share = rest_;
  share.end = rest_.begin + (rest_.end - rest_.begin) * static_cast<double>(lines) / static_cast<double>(lines_left_);
  rest_.begin = share.end;
  lines_left_ -= lines;
  return share;
}

}  // namespace trivium
