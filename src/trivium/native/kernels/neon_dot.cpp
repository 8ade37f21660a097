// The kernels for NEON with the dot-product extension (optional from ARMv8.2). Compiled with flags of its own: nothing here may leak
// into other translation units.
#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "packed_block.h"

namespace trivium {
namespace {

#include "simd_neon.h"
#include "simd_neon_dot.h"
constexpr const char* kName = "neon_dot";
#include "vector_ops.inl"
#include "fetching.inl"
#include "matmul.inl"
#include "attention.inl"
#include "table.inl"

}  // namespace

const Kernels* neon_dot_kernels() { return &kTable; }

}  // namespace trivium
