#include "weights.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "half.h"

namespace trivium {

namespace {

// The codebook of IQ4_NL.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float read_half(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return half_to_float(h);
}

// Low nibbles are elements 0..15, high nibbles 16..31.
void read_nibbles(const uint8_t* q, int8_t* codes) {
  for (int i = 0; i < 16; i++) {
    codes[i] = static_cast<int8_t>(q[i] & 15);
    codes[i + 16] = static_cast<int8_t>(q[i] >> 4);
  }
}

void add_fifth_bits(const uint8_t* p, int8_t* codes) {
  uint32_t high;
  std::memcpy(&high, p, sizeof high);
  for (int i = 0; i < 32; i++) codes[i] = static_cast<int8_t>(codes[i] | ((high >> i) & 1u) << 4);
}

// Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit minima in 12 bytes.
void read_k_scale(const uint8_t* p, int i, int* scale, int* min) {
  if (i < 4) {
    *scale = p[i] & 63;
    *min = p[i + 4] & 63;
  } else {
    *scale = (p[i + 4] & 15) | (p[i - 4] >> 6) << 4;
    *min = (p[i + 4] >> 4) | (p[i] >> 6) << 4;
  }
}

void read_k_block(const uint8_t* block, int i, CodeBlock* out, bool five_bits) {
  int scale, min;
  read_k_scale(block + 4, i, &scale, &min);
  const uint8_t* q = block + (five_bits ? 48 : 16) + 32 * (i / 2);
  for (int k = 0; k < 32; k++) {
    int code = i % 2 == 0 ? q[k] & 15 : q[k] >> 4;
    if (five_bits) code |= ((block[16 + k] >> i) & 1) << 4;
    out->codes[k] = static_cast<int8_t>(code);
  }
  out->part[0] = static_cast<int8_t>(scale);
  out->part[1] = static_cast<int8_t>(min);
  out->factor[0] = read_half(block);
  out->factor[1] = -read_half(block + 2);
  out->scale[0] = out->scale[1] = out->factor[0] * static_cast<float>(scale);
  out->min = out->factor[1] * static_cast<float>(min);
}

void read_q6_k(const uint8_t* block, int i, CodeBlock* out) {
  // Two halves of 128: 64 bytes of low nibbles and 32 bytes of high bit pairs each; a 32-run shares a nibble side and a pair.
  const int half = i / 4, run = i % 4;
  const uint8_t* low = block + 64 * half + 32 * (run % 2);
  const uint8_t* high = block + 128 + 32 * half;
  for (int k = 0; k < 32; k++) {
    const int nibble = run < 2 ? low[k] & 15 : low[k] >> 4;
    out->codes[k] = static_cast<int8_t>((nibble | ((high[k] >> (2 * run)) & 3) << 4) - 32);
  }
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192) + 8 * half + 2 * run;
  const float d = read_half(block + 208);
  for (int k = 0; k < 2; k++) {
    out->part[k] = scales[k];
    out->factor[k] = d;
    out->scale[k] = d * static_cast<float>(scales[k]);
  }
  out->min = 0.0f;
}

void read_32_block(TensorType type, const uint8_t* block, CodeBlock* out) {
  out->scale[0] = out->scale[1] = read_half(block);
  out->min = 0.0f;
  switch (type) {
    case TensorType::kQ4_0:
      read_nibbles(block + 2, out->codes);
      out->min = -8.0f * out->scale[0];
      break;
    case TensorType::kQ4_1:
      read_nibbles(block + 4, out->codes);
      out->min = read_half(block + 2);
      break;
    case TensorType::kQ5_0:
      read_nibbles(block + 6, out->codes);
      add_fifth_bits(block + 2, out->codes);
      for (int8_t& code : out->codes) code = static_cast<int8_t>(code - 16);
      break;
    case TensorType::kQ5_1:
      read_nibbles(block + 8, out->codes);
      add_fifth_bits(block + 4, out->codes);
      out->min = read_half(block + 2);
      break;
    case TensorType::kQ8_0: std::memcpy(out->codes, block + 2, 32); break;
    case TensorType::kIQ4_NL:
      read_nibbles(block + 2, out->codes);
      for (int8_t& code : out->codes) code = kIq4Values[code];
      break;
    default: throw std::invalid_argument("not a quantised tensor type: " + std::to_string(static_cast<int>(type)));
  }
}

}  // namespace

BlockShape block_shape(TensorType type) {
  switch (type) {
    case TensorType::kF32: return {1, 4};
    case TensorType::kF16:
    case TensorType::kBF16: return {1, 2};
    case TensorType::kQ4_0:
    case TensorType::kIQ4_NL: return {32, 18};
    case TensorType::kQ4_1: return {32, 20};
    case TensorType::kQ5_0: return {32, 22};
    case TensorType::kQ5_1: return {32, 24};
    case TensorType::kQ8_0: return {32, 34};
    case TensorType::kQ4_K: return {256, 144};
    case TensorType::kQ5_K: return {256, 176};
    case TensorType::kQ6_K: return {256, 210};
  }
  throw std::invalid_argument("unknown tensor type " + std::to_string(static_cast<int>(type)));
}

size_t tensor_bytes(TensorType type, int64_t count) {
  const BlockShape shape = block_shape(type);
  if (count < 0 || count % shape.elements != 0) {
    throw std::invalid_argument(std::to_string(count) + " elements are not whole blocks of " + std::to_string(shape.elements));
  }
  return static_cast<size_t>(count / shape.elements) * static_cast<size_t>(shape.bytes);
}

void read_codes(TensorType type, const uint8_t* row, int64_t index, CodeBlock* out) {
  const BlockShape shape = block_shape(type);
  const int per_block = shape.elements / 32;
  const uint8_t* block = row + index / (per_block == 0 ? 1 : per_block) * shape.bytes;
  const int within = per_block == 0 ? 0 : static_cast<int>(index % per_block);
  switch (type) {
    case TensorType::kQ4_K: read_k_block(block, within, out, false); break;
    case TensorType::kQ5_K: read_k_block(block, within, out, true); break;
    case TensorType::kQ6_K: read_q6_k(block, within, out); break;
    default: read_32_block(type, block, out);
  }
}

void dequantize(TensorType type, const uint8_t* data, int64_t count, float* out) {
  switch (type) {
    case TensorType::kF32: std::memcpy(out, data, static_cast<size_t>(count) * 4); return;
    case TensorType::kF16:
      for (int64_t i = 0; i < count; i++) out[i] = read_half(data + 2 * i);
      return;
    case TensorType::kBF16:
      for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = static_cast<uint32_t>(data[2 * i] | data[2 * i + 1] << 8) << 16;
        std::memcpy(out + i, &bits, sizeof bits);
      }
      return;
    default: break;
  }
  CodeBlock block;
  for (int64_t b = 0; b * 32 < count; b++) {
    read_codes(type, data, b, &block);
    for (int i = 0; i < 32; i++) {
      const float product = block.scale[i / 16] * static_cast<float>(block.codes[i]);
      out[b * 32 + i] = product + block.min;
    }
  }
}

}  // namespace trivium
