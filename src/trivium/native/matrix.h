// Packed weight matrices.
//
// 16 output rows form a group, and a group's blocks of 32 columns lie one after the other, so that a thread reads one linear stream:
//   W4: 256 bytes of codes, 16 scales, 16 minima if any. Byte 4*row + i of vector j (64 bytes, j = 0..3) holds column 8j + i in its low
//       nibble and column 8j + 4 + i in its high nibble.
//   W6: 384 bytes of codes, 32 scales. What is byte n of a W8 block has its 4 high bits in byte n % 256, from bit 4 on if n < 256,
//       else from bit 0 on; and its 2 low bits in byte 256 + n % 128, from bit 2, 0, 4 or 6 on for quarter n / 128 of the block.
//   W8: 512 bytes of codes, 16 scales, 16 minima if any. Pair t (32 bytes, t = 0..15) holds, per row, columns
//       4(t/2) + t%2 and 4(t/2) + t%2 + 2: the order in which int16 activations are kept.
//   F16, BF16, F32: 16 values per column.
// packed_block.h says how scales and minima lie.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "weights.h"

namespace trivium {

// What a model's activations become: of kAuto int8 for W4 and int16 for wider codes, of kInt8 int8 for all codes if the kernels can.
enum class ActivationMode { kAuto, kInt8, kInt16, kFloat32 };

enum class PackMode { kAuto, kFloat32, kWint8, kWint4 };

struct Source {
  TensorType type;
  const uint8_t* data;
  size_t bytes;
};

class Matrix {
 public:
  // Stacks the rows of `sources`, all of one type. Throws std::invalid_argument for sizes that do not fit, std::bad_alloc.
  Matrix(int32_t rows, int32_t cols, const std::vector<Source>& sources, PackMode mode);

  const PackedView& view() const { return view_; }
  int32_t rows() const { return view_.rows; }
  int32_t cols() const { return view_.cols; }
  size_t nbytes() const { return static_cast<size_t>(view_.group_bytes) * static_cast<size_t>(view_.groups); }
  std::string family() const;

  // How activations must be given.
  Activation activation(ActivationMode mode) const;

  // One row as float32 [cols].
  void read_row(int32_t row, float* out) const;

 private:
  void choose_family(TensorType type, PackMode mode);
  void pack_group(int32_t group, const std::vector<const uint8_t*>& rows, TensorType type, PackMode mode);

  PackedView view_{};
  std::shared_ptr<uint8_t> memory_;
};

}  // namespace trivium
