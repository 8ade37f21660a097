#include "matrix.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "arena.h"
#include "half.h"
#include "kernels/packed_block.h"
#include "pool.h"

namespace trivium {

namespace {

bool is_float(TensorType type) { return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16; }

bool is_four_bit(TensorType type) {
  return type == TensorType::kQ4_0 || type == TensorType::kQ4_1 || type == TensorType::kQ4_K;
}

bool has_min(TensorType type) {
  return type == TensorType::kQ4_1 || type == TensorType::kQ4_K || type == TensorType::kQ5_1 || type == TensorType::kQ5_K;
}

bool is_k_quant(TensorType type) {
  return type == TensorType::kQ4_K || type == TensorType::kQ5_K || type == TensorType::kQ6_K;
}

// Column of position `slot` (0..31) in the int16 order of activations: each four as 0, 2, 1, 3.
constexpr int column_of_slot(int slot) {
  constexpr int kOrder[4] = {0, 2, 1, 3};
  return slot / 4 * 4 + kOrder[slot % 4];
}

// Bits of a byte, from `shift` on.
void put_bits(uint8_t* byte, int bits, int shift, int value) {
  const int mask = ((1 << bits) - 1) << shift;
  *byte = static_cast<uint8_t>((*byte & ~mask) | (value << shift & mask));
}

// Where the low bits of a W6 code lie in their byte, by quarter of a block.
constexpr int kLowBits[4] = {2, 0, 4, 6};

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
    const int at = 32 * (slot / 2) + 2 * row + slot % 2, code = codes[column_of_slot(slot)];
    if (family == Family::kW6) {
      put_bits(block + at % 256, 4, 4 - at / 256 * 4, code >> 2);
      put_bits(block + 256 + at % 128, 2, kLowBits[at / 128], code);
    } else {
      block[at] = static_cast<uint8_t>(code);
    }
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
    const int at = 32 * (slot / 2) + 2 * row + slot % 2;
    int code = static_cast<int8_t>(block[at]);
    if (family == Family::kW6) {
      const int high = block[at % 256] >> (4 - at / 256 * 4) & 15, low = block[256 + at % 128] >> kLowBits[at / 128] & 3;
      code = (high ^ 8) * 4 - 32 + low;
    }
    codes[column_of_slot(slot)] = static_cast<int8_t>(code);
  }
}

void put_half(uint8_t* halves, int lane, float value) {
  const uint16_t half = float_to_half(value);
  std::memcpy(halves + 2 * lane, &half, sizeof half);
}

float get_half(const uint8_t* halves, int lane) {
  uint16_t half;
  std::memcpy(&half, halves + 2 * lane, sizeof half);
  return half_to_float(half);
}

int code_bytes(const PackedView& view) {
  return view.family == Family::kW4 ? kCodes4 : view.family == Family::kW6 ? kCodes6 : kCodes8;
}

// Vectors of scales in a block that is not nested.
int scale_parts(const PackedView& view) { return 1 + view.has_min; }

int64_t codes_at(const PackedView& view, int b) {
  const int codes = code_bytes(view);
  return view.nested ? nested_codes(b, codes) : static_cast<int64_t>(b) * (codes + scale_parts(view) * 2 * kGroup);
}

void put_scales(const PackedView& view, uint8_t* group, int b, int lane, const CodeBlock& block) {
  const int codes = code_bytes(view);
  if (view.nested) {
    for (int part = 0; part < 2; part++) {
      group[nested_scale(b, part, codes) + lane] = static_cast<uint8_t>(block.part[part]);
      put_half(group + nested_factor(b, part, codes), lane, block.factor[part]);
    }
    return;
  }
  uint8_t* scales = group + codes_at(view, b) + codes;
  put_half(scales, lane, block.scale[0]);
  if (view.has_min) put_half(scales + 2 * kGroup, lane, block.min);
}

float get_scale(const PackedView& view, const uint8_t* group, int b, int lane, int part) {
  const int codes = code_bytes(view);
  if (!view.nested) return get_half(group + codes_at(view, b) + codes + part * 2 * kGroup, lane);
  return get_half(group + nested_factor(b, part, codes), lane) *
         static_cast<float>(static_cast<int8_t>(group[nested_scale(b, part, codes) + lane]));
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
    view_.half_scales = type == TensorType::kQ6_K;
    view_.family = is_four_bit(type) ? Family::kW4 : view_.half_scales ? Family::kW6 : Family::kW8;
    view_.has_min = has_min(type);
    view_.nested = is_k_quant(type);
  }
  switch (view_.family) {
    case Family::kF32: view_.group_bytes = int64_t{4} * kGroup * view_.cols; break;
    case Family::kF16:
    case Family::kBF16: view_.group_bytes = int64_t{2} * kGroup * view_.cols; break;
    default: view_.group_bytes = view_.nested ? view_.blocks / kNest * nest_bytes(code_bytes(view_)) : codes_at(view_, view_.blocks);
  }
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
    for (int32_t b = 0; b < view_.blocks; b++) {
      CodeBlock block;
      if (!to_float) read_codes(type, row, b, &block);
      else if (mode == PackMode::kWint4) quantize_wint4(&row_values[static_cast<size_t>(b) * kBlock], &block);
      else quantize_wint8(&row_values[static_cast<size_t>(b) * kBlock], &block);
      put_code(view_.family, base + codes_at(view_, b), lane, block.codes);
      put_scales(view_, base, b, lane, block);
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
  for (int32_t b = 0; b < view_.blocks; b++) {
    int8_t codes[kBlock];
    get_codes(view_.family, base + codes_at(view_, b), lane, codes);
    const float first = get_scale(view_, base, b, lane, 0);
    const float second = view_.half_scales ? get_scale(view_, base, b, lane, 1) : first;
    const float min = view_.has_min ? get_scale(view_, base, b, lane, 1) : view_.family == Family::kW4 ? -8.0f * first : 0.0f;
    for (int i = 0; i < kBlock && b * kBlock + i < view_.cols; i++) {
      const float product = (i < kBlock / 2 ? first : second) * static_cast<float>(codes[i]);
      out[b * kBlock + i] = product + min;
    }
  }
}

std::string Matrix::family() const {
  switch (view_.family) {
    case Family::kW4: return view_.nested ? "w4-min-nested" : view_.has_min ? "w4-min" : "w4";
    case Family::kW6: return "w6-half-nested";
    case Family::kW8: return std::string("w8") + (view_.has_min ? "-min" : "") + (view_.nested ? "-nested" : "");
    case Family::kF16: return "f16";
    case Family::kBF16: return "bf16";
    default: return "f32";
  }
}

Activation Matrix::activation(ActivationMode mode) const {
  const bool narrow = view_.family == Family::kW4, codes = narrow || view_.family == Family::kW6 || view_.family == Family::kW8;
  if (!codes) return Activation::kFloat32;
  const bool int8 = mode == ActivationMode::kInt8 ? narrow || kernels().bytes_by_bytes : mode == ActivationMode::kAuto && narrow;
  return int8 ? Activation::kInt8 : Activation::kInt16;
}

}  // namespace trivium
