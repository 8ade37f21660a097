// The kernels for NEON as every ARMv8.0 CPU has it.
#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "packed_block.h"

namespace trivium {
namespace {

#include "simd_neon.h"
#include "simd_neon_mul.h"
constexpr const char* kName = "neon";
#include "vector_ops.inl"
#include "fetching.inl"
#include "matmul.inl"
#include "attention.inl"
#include "table.inl"

}  // namespace

const Kernels* neon_kernels() { return &kTable; }

}  // namespace trivium
