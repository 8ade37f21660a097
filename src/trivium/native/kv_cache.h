// The paged KV cache: physical blocks of `block_size` positions for every layer.
//
// A block of one layer holds, per KV head, the keys as [block_size / 16][head_dim][16], then, per KV head, the values as
// [block_size][head_dim]; head_dim is padded to a multiple of 16 with zeros.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "model.h"

namespace trivium {

class KvCache {
 public:
  static size_t block_bytes(const ModelConfig& config, int block_size, bool float32);

  // Zeroed memory, touched only as blocks come into use. Throws std::bad_alloc, std::invalid_argument.
  KvCache(const ModelConfig& config, int num_blocks, int block_size, bool float32);

  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  bool float32() const { return float32_; }

  void copy_blocks(const std::vector<std::pair<int, int>>& pairs);

  // Keep the key and value of one head at position `slot` of physical block `block`.
  void write(int layer, int block, int slot, int head, const float* key, const float* value);

  // Fills in where attention finds the keys and values of `head`.
  void locate(int layer, int head, AttentionArgs* args) const;

 private:
  uint8_t* layer_base(int layer) const;

  int num_layers_, num_kv_heads_, head_dim_, head_dim_padded_, num_blocks_, block_size_;
  bool float32_;
  int64_t block_stride_;  // elements
  std::shared_ptr<uint8_t> memory_;
};

}  // namespace trivium
