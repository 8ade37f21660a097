// How the attention of a step is shared out among threads. No choice made here changes a bit of any result.
#pragma once

#include <cstdint>
#include <vector>

namespace trivium {

struct StepInput;

constexpr int kFewQueries = 12;  // an item with no more waits for memory

// Query rows of one sequence and KV head, which go through the same key tiles together: (position, head of the group) pairs,
// position-major, [begin, end).
struct AttentionItem {
  int32_t sequence, head, begin, end, first_tile, end_tile;

  int queries() const { return end - begin; }
  int tiles() const { return end_tile - first_tile; }
};

struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<int> task_starts;  // where a thread's tasks begin among the items, and their end

  // Items that threads compute as a whole. The tiles of those after them are computed apart, and merged.
  int num_whole() const { return task_starts.back(); }
  int num_tasks() const { return static_cast<int>(task_starts.size()) - 1; }
};

// `group`: query heads per KV head; `window`: keys that a query sees, 0 for all.
AttentionPlan plan_attention(const StepInput& in, int num_kv_heads, int group, int window, int num_threads);

}  // namespace trivium
