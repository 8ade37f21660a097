// Element types of model files and their dequantisation, as defined by GGUF (ggml-quants).
#pragma once

#include <cstddef>
#include <cstdint>

namespace trivium {

enum class TensorType : int {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kBF16 = 30,
};

// Elements and bytes of one block; throws std::invalid_argument for an unknown type.
struct BlockShape {
  int elements;
  int bytes;
};
BlockShape block_shape(TensorType type);

// Bytes of `count` elements; throws std::invalid_argument if they are not whole blocks.
size_t tensor_bytes(TensorType type, int64_t count);

// 32 weights in integer form: weight = scale[i / 16] * code + min.
struct CodeBlock {
  int8_t codes[32];
  float scale[2];
  float min;
  // Of K-quants, whose scales nest: scale[i] = part[i] * factor[i], and min = part[1] * factor[1] where there are minima.
  int8_t part[2];
  float factor[2];
};

// Block `index` (of 32) of a row of an integer type, exactly as the type defines it.
void read_codes(TensorType type, const uint8_t* row, int64_t index, CodeBlock* out);

// `count` elements starting at a block boundary, as float32: the arithmetic of the format's reference implementation.
void dequantize(TensorType type, const uint8_t* data, int64_t count, float* out);

}  // namespace trivium
