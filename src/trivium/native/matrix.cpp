#include "matrix.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "arena.h"
#include "half.h"
#include "pool.h"

namespace trivium {

namespace {

bool is_float(TensorType type) { return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16; }

bool is_four_bit(TensorType type) {
  return type == TensorType::kQ4_0 || type == TensorType::kQ4_1 || type == TensorType::kQ4_K;
}

bool has_min(TensorType type) {
  return is_four_bit(type) || type == TensorType::kQ5_1 || type == TensorType::kQ5_K;
}

bool is_k_quant(TensorType type) {
  return type == TensorType::kQ4_K || type == TensorType::kQ5_K || type == TensorType::kQ6_K;
}

// Column of position `slot` (0..31) in the int16 order of activations: each four as 0, 2, 1, 3.
constexpr int column_of_slot(int slot) {
  constexpr int kOrder[4] = {0, 2, 1, 3};
  return slot / 4 * 4 + kOrder[slot % 4];
}

void put_code(Family family, uint8_t* block, int row, const int8_t* codes) {
  if (family == Family::kW4) {
    for (int j = 0; j < 4; j++) {
      for (int i = 0; i < 4; i++) {
        block[64 * j + 4 * row + i] = static_cast<uint8_t>(codes[8 * j + i] | codes[8 * j + 4 + i] << 4);
      }
    }
    return;
  }
  for (int slot = 0; slot < kBlock; slot++) {
    block[32 * (slot / 2) + 2 * row + slot % 2] = static_cast<uint8_t>(codes[column_of_slot(slot)]);
  }
}

void get_codes(Family family, const uint8_t* block, int row, int8_t* codes) {
  if (family == Family::kW4) {
    for (int j = 0; j < 4; j++) {
      for (int i = 0; i < 4; i++) {
        codes[8 * j + i] = static_cast<int8_t>(block[64 * j + 4 * row + i] & 15);
        codes[8 * j + 4 + i] = static_cast<int8_t>(block[64 * j + 4 * row + i] >> 4);
      }
    }
    return;
  }
  for (int slot = 0; slot < kBlock; slot++) {
    codes[column_of_slot(slot)] = static_cast<int8_t>(block[32 * (slot / 2) + 2 * row + slot % 2]);
  }
}

void put_scale(uint8_t* scales, bool wide, int index, float value) {
  if (wide) {
    std::memcpy(scales + 4 * index, &value, 4);
  } else {
    const uint16_t half = float_to_half(value);
    std::memcpy(scales + 2 * index, &half, 2);
  }
}

float get_scale(const uint8_t* scales, bool wide, int index) {
  if (wide) {
    float value;
    std::memcpy(&value, scales + 4 * index, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, scales + 2 * index, 2);
  return half_to_float(half);
}

// Symmetric 8-bit: the largest magnitude becomes 127.
void quantize_wint8(const float* x, CodeBlock* out) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; i++) largest = std::fmax(largest, std::fabs(x[i]));
  const float scale = half_to_float(float_to_half(largest / 127.0f));
  for (int i = 0; i < kBlock; i++) {
    const float code = scale > 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
    out->codes[i] = static_cast<int8_t>(std::fmin(127.0f, std::fmax(-127.0f, code)));
  }
  out->scale[0] = out->scale[1] = scale;
  out->min = 0.0f;
}

// Asymmetric 4-bit: 16 levels from the smallest to the largest value.
void quantize_wint4(const float* x, CodeBlock* out) {
  float low = x[0], high = x[0];
  for (int i = 1; i < kBlock; i++) {
    low = std::fmin(low, x[i]);
    high = std::fmax(high, x[i]);
  }
  const float scale = half_to_float(float_to_half((high - low) / 15.0f));
  out->min = half_to_float(float_to_half(low));
  for (int i = 0; i < kBlock; i++) {
    const float code = scale > 0.0f ? std::nearbyint((x[i] - out->min) / scale) : 0.0f;
    out->codes[i] = static_cast<int8_t>(std::fmin(15.0f, std::fmax(0.0f, code)));
  }
  out->scale[0] = out->scale[1] = scale;
}

}  // namespace

void Matrix::choose_family(TensorType type, PackMode mode) {
  if (mode == PackMode::kFloat32) {
    view_.family = Family::kF32;
  } else if (is_float(type)) {
    if (mode == PackMode::kWint8) view_.family = Family::kW8;
    else if (mode == PackMode::kWint4) view_.family = Family::kW4;
    else view_.family = type == TensorType::kF32 ? Family::kF32 : type == TensorType::kF16 ? Family::kF16 : Family::kBF16;
    view_.has_min = view_.family == Family::kW4;
  } else {
    view_.family = is_four_bit(type) ? Family::kW4 : Family::kW8;
    view_.has_min = has_min(type);
    view_.wide_scales = is_k_quant(type);
    view_.half_scales = type == TensorType::kQ6_K;
  }
  const int scales = kGroup * (view_.wide_scales ? 4 : 2);
  switch (view_.family) {
    case Family::kW4: block_bytes_ = 256 + 2 * scales; break;
    case Family::kW8: block_bytes_ = 512 + scales * (1 + view_.half_scales + view_.has_min); break;
    case Family::kF32: block_bytes_ = 4 * kGroup; break;  // per column
    default: block_bytes_ = 2 * kGroup; break;
  }
  const bool floats = view_.family == Family::kF32 || view_.family == Family::kF16 || view_.family == Family::kBF16;
  view_.group_bytes = static_cast<int64_t>(block_bytes_) * (floats ? view_.cols : view_.blocks);
}

Matrix::Matrix(int32_t rows, int32_t cols, const std::vector<Source>& sources, PackMode mode) {
  if (rows < 1 || cols < 1 || sources.empty()) throw std::invalid_argument("a matrix needs rows, columns and sources");
  view_.rows = rows;
  view_.cols = cols;
  view_.groups = (rows + kGroup - 1) / kGroup;
  view_.blocks = (cols + kBlock - 1) / kBlock;
  const TensorType type = sources.front().type;
  const size_t row_bytes = tensor_bytes(type, cols);
  std::vector<const uint8_t*> row_data;
  for (const Source& source : sources) {
    if (source.type != type) throw std::invalid_argument("stacked sources must have one element type");
    if (source.bytes % row_bytes != 0) {
      throw std::invalid_argument("a source of " + std::to_string(source.bytes) + " bytes is not whole rows of " +
                                  std::to_string(row_bytes) + " bytes");
    }
    for (size_t offset = 0; offset < source.bytes; offset += row_bytes) row_data.push_back(source.data + offset);
  }
  if (row_data.size() != static_cast<size_t>(rows)) {
    throw std::invalid_argument("the sources hold " + std::to_string(row_data.size()) + " rows, expected " + std::to_string(rows));
  }
  choose_family(type, mode);
  memory_ = arena_allocate(nbytes());
  view_.data = memory_.get();
  Pool& pool = Pool::instance();
  std::lock_guard<std::mutex> lock(pool.owner());
  pool.begin_step();
  const int chunks = (view_.groups + 7) / 8;
  pool.run(chunks, [&](int chunk) {
    for (int32_t group = chunk * 8; group < view_.groups && group < chunk * 8 + 8; group++) pack_group(group, row_data, type, mode);
  });
  pool.end_step();
}

void Matrix::pack_group(int32_t group, const std::vector<const uint8_t*>& rows, TensorType type, PackMode mode) {
  uint8_t* base = memory_.get() + group * view_.group_bytes;
  std::vector<float> row_values;
  for (int lane = 0; lane < kGroup && group * kGroup + lane < view_.rows; lane++) {
    const uint8_t* row = rows[static_cast<size_t>(group) * kGroup + lane];
    const bool to_float = view_.family == Family::kF32 || is_float(type);
    if (to_float) {
      row_values.assign(static_cast<size_t>(view_.blocks) * kBlock, 0.0f);
      dequantize(type, row, view_.cols, row_values.data());
    }
    if (view_.family == Family::kF32) {
      for (int32_t k = 0; k < view_.cols; k++) std::memcpy(base + (static_cast<int64_t>(k) * kGroup + lane) * 4, &row_values[k], 4);
      continue;
    }
    if (view_.family == Family::kF16 || view_.family == Family::kBF16) {
      for (int32_t k = 0; k < view_.cols; k++) std::memcpy(base + (static_cast<int64_t>(k) * kGroup + lane) * 2, row + 2 * k, 2);
      continue;
    }
    const int scale_bytes = kGroup * (view_.wide_scales ? 4 : 2);
    for (int32_t b = 0; b < view_.blocks; b++) {
      CodeBlock block;
      if (!to_float) read_codes(type, row, b, &block);
      else if (mode == PackMode::kWint4) quantize_wint4(&row_values[static_cast<size_t>(b) * kBlock], &block);
      else quantize_wint8(&row_values[static_cast<size_t>(b) * kBlock], &block);
      uint8_t* out = base + static_cast<int64_t>(b) * block_bytes_;
      uint8_t* scales = out + (view_.family == Family::kW4 ? 256 : 512);
      put_code(view_.family, out, lane, block.codes);
      put_scale(scales, view_.wide_scales, lane, block.scale[0]);
      if (view_.half_scales) put_scale(scales + scale_bytes, view_.wide_scales, lane, block.scale[1]);
      if (view_.has_min) put_scale(out + block_bytes_ - scale_bytes, view_.wide_scales, lane, block.min);
    }
  }
}

void Matrix::read_row(int32_t row, float* out) const {
  const int32_t group = row / kGroup;
  const int lane = row % kGroup;
  const uint8_t* base = view_.data + group * view_.group_bytes;
  if (view_.family == Family::kF32) {
    for (int32_t k = 0; k < view_.cols; k++) std::memcpy(out + k, base + (static_cast<int64_t>(k) * kGroup + lane) * 4, 4);
    return;
  }
  if (view_.family == Family::kF16 || view_.family == Family::kBF16) {
    const TensorType type = view_.family == Family::kF16 ? TensorType::kF16 : TensorType::kBF16;
    for (int32_t k = 0; k < view_.cols; k++) dequantize(type, base + (static_cast<int64_t>(k) * kGroup + lane) * 2, 1, out + k);
    return;
  }
  const int scale_bytes = kGroup * (view_.wide_scales ? 4 : 2);
  for (int32_t b = 0; b < view_.blocks; b++) {
    const uint8_t* block = base + static_cast<int64_t>(b) * block_bytes_;
    const uint8_t* scales = block + (view_.family == Family::kW4 ? 256 : 512);
    int8_t codes[kBlock];
    get_codes(view_.family, block, lane, codes);
    const float first = get_scale(scales, view_.wide_scales, lane);
    const float second = view_.half_scales ? get_scale(scales + scale_bytes, view_.wide_scales, lane) : first;
    const float min = view_.has_min ? get_scale(block + block_bytes_ - scale_bytes, view_.wide_scales, lane) : 0.0f;
    for (int i = 0; i < kBlock && b * kBlock + i < view_.cols; i++) {
      const float product = (i < kBlock / 2 ? first : second) * static_cast<float>(codes[i]);
      out[b * kBlock + i] = product + min;
    }
  }
}

std::string Matrix::family() const {
  switch (view_.family) {
    case Family::kW4: return view_.wide_scales ? "w4-wide" : "w4";
    case Family::kW8: return std::string("w8") + (view_.half_scales ? "-half" : "") + (view_.has_min ? "-min" : "") + (view_.wide_scales ? "-wide" : "");
    case Family::kF16: return "f16";
    case Family::kBF16: return "bf16";
    default: return "f32";
  }
}

Activation Matrix::activation(Activation wanted) const {
  if (view_.family == Family::kW4) return wanted == Activation::kInt8 ? Activation::kInt8 : Activation::kInt16;
  if (view_.family == Family::kW8) return Activation::kInt16;
  return Activation::kFloat32;
}

}  // namespace trivium
