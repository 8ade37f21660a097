#include "kv_cache.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "arena.h"

namespace trivium {

namespace {

int64_t block_elements(const ModelConfig& config, int block_size) {
  return int64_t{2} * config.num_kv_heads * block_size * config.head_dim_padded();
}

// Finite, so that a fault of one request stays in it.
void store_f32(float* out, const float* x, int n, int64_t stride) {
  constexpr float kLargest = 3.0e38f;
  for (int i = 0; i < n; i++) out[i * stride] = x[i] > -kLargest ? (x[i] < kLargest ? x[i] : kLargest) : -kLargest;
}

}  // namespace

size_t KvCache::block_bytes(const ModelConfig& config, int block_size, bool float32) {
  return static_cast<size_t>(block_elements(config, block_size)) * static_cast<size_t>(config.num_layers) * (float32 ? 4 : 2);
}

KvCache::KvCache(const ModelConfig& config, int num_blocks, int block_size, bool float32)
    : num_layers_(config.num_layers),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      head_dim_padded_(config.head_dim_padded()),
      num_blocks_(num_blocks),
      block_size_(block_size),
      float32_(float32),
      block_stride_(block_elements(config, block_size)) {
  if (num_blocks < 1) throw std::invalid_argument("the KV cache needs at least one block");
  if (block_size < kSubtile || block_size % kSubtile != 0) throw std::invalid_argument("block_size must be a multiple of 16");
  memory_ = map_memory(block_bytes(config, block_size, float32) * static_cast<size_t>(num_blocks));
}

uint8_t* KvCache::layer_base(int layer) const {
  return memory_.get() + static_cast<int64_t>(layer) * num_blocks_ * block_stride_ * (float32_ ? 4 : 2);
}

void KvCache::copy_blocks(const std::vector<std::pair<int, int>>& pairs) {
  const int64_t bytes = block_stride_ * (float32_ ? 4 : 2);
  for (const auto& [from, to] : pairs) {
    if (from < 0 || from >= num_blocks_ || to < 0 || to >= num_blocks_) throw std::invalid_argument("no such KV block");
    for (int layer = 0; layer < num_layers_; layer++) {
      std::memcpy(layer_base(layer) + to * bytes, layer_base(layer) + from * bytes, static_cast<size_t>(bytes));
    }
  }
}

void KvCache::write(int layer, int block, int slot, int head, const float* key, const float* value) {
  const int64_t head_elements = static_cast<int64_t>(block_size_) * head_dim_padded_;
  const int64_t start = block * block_stride_ + head * head_elements;
  const int64_t k = start + static_cast<int64_t>(slot / kSubtile) * kSubtile * head_dim_padded_ + slot % kSubtile;
  const int64_t v = start + num_kv_heads_ * head_elements + static_cast<int64_t>(slot) * head_dim_padded_;
  if (float32_) {
    float* base = reinterpret_cast<float*>(layer_base(layer));
    store_f32(base + k, key, head_dim_, kSubtile);
    store_f32(base + v, value, head_dim_, 1);
  } else {
    uint16_t* base = reinterpret_cast<uint16_t*>(layer_base(layer));
    kernels().store_f16(base + k, key, head_dim_, kSubtile);
    kernels().store_f16(base + v, value, head_dim_, 1);
  }
}

void KvCache::locate(int layer, int head, AttentionArgs* args) const {
  const int64_t head_elements = static_cast<int64_t>(block_size_) * head_dim_padded_;
  args->cache = layer_base(layer);
  args->block_size = block_size_;
  args->block_stride = block_stride_;
  args->k_offset = head * head_elements;
  args->v_offset = (num_kv_heads_ + head) * head_elements;
  args->head_dim_padded = head_dim_padded_;
}

}  // namespace trivium
