// Where the parts of a packed 4-, 6- or 8-bit group of 16 rows lie: per block of 32 columns codes and one or two vectors of 16 scales.
//
// A block is its codes, then its scales as float16. K-quants nest their scales: each is an int8 times a float16 that 8 blocks share.
// They are kept so, 8 blocks together: two vectors of 16 float16, the second for minima or half blocks; for each of the two, 8 vectors of
// int8; then the codes of the 8 blocks. All of it starts at multiples of 64 bytes.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace trivium {

// Bytes of a block's codes, 16 rows of 32 columns.
constexpr int kCodes4 = 256, kCodes6 = 384, kCodes8 = 512;

constexpr int kNest = 8;                                        // blocks
constexpr int kNestScales = 2 * (2 * kGroup + kNest * kGroup);  // bytes

// All offsets are from the start of a group. constexpr, with internal linkage: each instruction set gets its own.
static constexpr int64_t nest_bytes(int code_bytes) { return kNestScales + kNest * code_bytes; }
static constexpr int64_t nested_codes(int b, int code_bytes) {
  return b / kNest * nest_bytes(code_bytes) + kNestScales + b % kNest * code_bytes;
}
static constexpr int64_t nested_factor(int b, int part, int code_bytes) { return b / kNest * nest_bytes(code_bytes) + part * 2 * kGroup; }
static constexpr int64_t nested_scale(int b, int part, int code_bytes) {
  return b / kNest * nest_bytes(code_bytes) + 4 * kGroup + (part * kNest + b % kNest) * kGroup;
}

}  // namespace trivium
