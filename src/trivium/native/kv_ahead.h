// What the next layer's attention reads of the KV cache, for the products before it to fetch.
//
// With more rows than a tile has, products wait for arithmetic, and attention waits for memory. So tiles fetch keys and values beside their
// weights: into the caches of the core whose thread reads them next, or the one that cores share. That changes no result.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace trivium {

class KvCache;
struct AttentionPlan;
struct StepInput;

// Keys or values of 16 positions and a head, in the order in which each thread's tasks read them; of sequences with few queries.
struct KvRuns {
  std::vector<int64_t> offsets;  // from a layer's first byte on
  std::vector<int32_t> starts;   // of each thread's, and their end
  int lines = 0;                 // cache lines of a run
};

KvRuns list_kv_runs(const StepInput& in, const AttentionPlan& plan, const KvCache& cache, int num_threads);

// A part of each thread's runs, from the fraction `begin` on.
struct KvShare {
  const KvRuns* runs = nullptr;
  const uint8_t* layer = nullptr;
  double begin = 0.0, end = 0.0;

  // What task `task` of a parallel loop over `tasks` fetches.
  FetchList of_task(int task, int tasks) const;
};

// Spreads the runs over products by what each can fetch.
class KvAhead {
 public:
  // The next products fetch those of a layer, of which `layer` is the first byte; all together they can fetch so many lines.
  void begin(const KvRuns& runs, const uint8_t* layer, int64_t lines);
  // Forgets them.
  void clear() { *this = KvAhead(); }

  // What a product fetches that can fetch so many lines.
  KvShare take(int64_t lines);

 private:
  KvShare rest_;
  int64_t lines_left_ = 0;
};

}  // namespace trivium
