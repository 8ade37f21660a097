#include "kv_cache.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "arena.h"

namespace trivium {

namespace {

// One key, or value, of one head.
int64_t position_bytes(const ModelConfig& config, KvType type) {
  const int64_t head_dim = config.head_dim_padded();
  switch (type) {
    case KvType::kFloat16: return head_dim * 2;
    case KvType::kFloat32: return head_dim * 4;
    case KvType::kInt16: return head_dim * 2 + static_cast<int64_t>(sizeof(float));
    case KvType::kInt8: break;
  }
  return head_dim + static_cast<int64_t>(sizeof(float));
}

int64_t block_bytes_of_layer(const ModelConfig& config, int block_size, KvType type) {
  return int64_t{2} * config.num_kv_heads * block_size * position_bytes(config, type);
}

// Finite, so that a fault of one request stays in it.
void store_f32(float* out, const float* x, int n, int64_t stride) {
  constexpr float kLargest = 3.0e38f;
  for (int i = 0; i < n; i++) out[i * stride] = x[i] > -kLargest ? (x[i] < kLargest ? x[i] : kLargest) : -kLargest;
}

// Where the first code of a key and a value, and their scales, are in the subtiles k and v.
template <typename Code>
struct CodePlaces {
  Code *key, *value;
  float *key_scale, *value_scale;

  CodePlaces(uint8_t* k, uint8_t* v, int within, int64_t head_dim)
      : key(reinterpret_cast<Code*>(k) + 2 * within),
        value(reinterpret_cast<Code*>(v) + (within - within % 2) * head_dim + within % 2),
        key_scale(reinterpret_cast<float*>(reinterpret_cast<Code*>(k) + kSubtile * head_dim) + within),
        value_scale(reinterpret_cast<float*>(reinterpret_cast<Code*>(v) + kSubtile * head_dim) + within) {}
};

}  // namespace

size_t KvCache::block_bytes(const ModelConfig& config, int block_size, KvType type) {
  return static_cast<size_t>(block_bytes_of_layer(config, block_size, type)) * static_cast<size_t>(config.num_layers);
}

KvCache::KvCache(const ModelConfig& config, int num_blocks, int block_size, KvType type)
    : num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      head_dim_padded_(config.head_dim_padded()),
      num_blocks_(num_blocks),
      block_size_(block_size),
      type_(type),
      position_bytes_(position_bytes(config, type)),
      layer_bytes_(block_bytes_of_layer(config, block_size, type)),
      block_stride_(layer_bytes_ * config.num_layers) {
  if (num_blocks < 1) throw std::invalid_argument("the KV cache needs at least one block");
  if (block_size < kSubtile || block_size % kSubtile != 0) throw std::invalid_argument("block_size must be a multiple of 16");
  memory_ = map_memory(block_bytes(config, block_size, type) * static_cast<size_t>(num_blocks));
}

void KvCache::copy_blocks(const std::vector<std::pair<int, int>>& pairs) {
  for (const auto& [from, to] : pairs) {
    if (from < 0 || from >= num_blocks_ || to < 0 || to >= num_blocks_) throw std::invalid_argument("no such KV block");
    std::memcpy(memory_.get() + to * block_stride_, memory_.get() + from * block_stride_, static_cast<size_t>(block_stride_));
  }
}

void KvCache::write(int layer, int block, int slot, int head, const float* key, const float* value) {
  const int within = slot % kSubtile;
  uint8_t* k = memory_.get() + block * block_stride_ + layer * layer_bytes_ + head * head_bytes() + (slot - within) * position_bytes_;
  uint8_t* v = k + num_kv_heads_ * head_bytes();
  switch (type_) {
    case KvType::kFloat16:
      kernels().store_f16(reinterpret_cast<uint16_t*>(k) + within, key, head_dim_, kSubtile);
      kernels().store_f16(reinterpret_cast<uint16_t*>(v) + within * head_dim_padded_, value, head_dim_, 1);
      break;
    case KvType::kFloat32:
      store_f32(reinterpret_cast<float*>(k) + within, key, head_dim_, kSubtile);
      store_f32(reinterpret_cast<float*>(v) + within * head_dim_padded_, value, head_dim_, 1);
      break;
    case KvType::kInt16: {
      const CodePlaces<int16_t> at(k, v, within, head_dim_padded_);
      *at.key_scale = kernels().store_key_i16(at.key, key, head_dim_);
      *at.value_scale = kernels().store_value_i16(at.value, value, head_dim_);
      break;
    }
    case KvType::kInt8: {
      const CodePlaces<int8_t> at(k, v, within, head_dim_padded_);
      *at.key_scale = kernels().store_key_i8(at.key, key, head_dim_);
      *at.value_scale = kernels().store_value_i8(at.value, value, head_dim_);
      break;
    }
  }
}

void KvCache::locate(int layer, int head, AttentionArgs* args) const {
  args->cache = memory_.get() + layer * layer_bytes_;
  args->block_size = block_size_;
  args->block_stride = block_stride_;
  args->k_offset = head * head_bytes();
  args->v_offset = (num_kv_heads_ + head) * head_bytes();
  args->subtile_bytes = kSubtile * position_bytes_;
  args->head_dim_padded = head_dim_padded_;
}

}  // namespace trivium
