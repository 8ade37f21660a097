// The paged KV cache: physical blocks of `block_size` positions for every layer.
//
// A block's layers lie one after the other, so that a new block takes a huge page or two of new memory: the system clears pages when they
// are first touched, and one for each layer at once would hold up everybody. Of a layer a block holds, per KV head, the keys of each 16 positions, then, per KV head, the values of each 16 positions.
// 16 keys lie as [head_dim][16], 16 values as [16][head_dim]; head_dim is padded to a multiple of 16 with zeros.
//
// As codes, int16 or int8, a key or value is head_dim codes and a scale. 16 keys lie as [head_dim / 2][16][2] and 16 values as
// [8][head_dim][2], so that pairs which are multiplied and summed together are neighbours; the 16 scales (float32) follow.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "model.h"

namespace trivium {

enum class KvType : uint8_t { kInt16, kInt8, kFloat16, kFloat32 };

inline bool has_codes(KvType type) { return type == KvType::kInt16 || type == KvType::kInt8; }

class KvCache {
 public:
  static size_t block_bytes(const ModelConfig& config, int block_size, KvType type);

  // Zeroed memory, touched only as blocks come into use. Throws std::bad_alloc, std::invalid_argument.
  KvCache(const ModelConfig& config, int num_blocks, int block_size, KvType type);

  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  KvType type() const { return type_; }

  void copy_blocks(const std::vector<std::pair<int, int>>& pairs);

  // Keep the key and value of one head at position `slot` of physical block `block`.
  void write(int layer, int block, int slot, int head, const float* key, const float* value);

  // Fills in where attention finds the keys and values of `head`.
  void locate(int layer, int head, AttentionArgs* args) const;

 private:
  int64_t head_bytes() const { return block_size_ * position_bytes_; }  // a head's keys in a block

  int num_kv_heads_, head_dim_, head_dim_padded_, num_blocks_, block_size_;
  KvType type_;
  int64_t position_bytes_;  // a key of one head
  int64_t layer_bytes_;     // of a block
  int64_t block_stride_;    // bytes from block to block
  std::shared_ptr<uint8_t> memory_;
};

}  // namespace trivium
