// The kernels for any CPU: the compiler's own vectors at the baseline instruction set.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../half.h"
#include "kernels.h"
#include "packed_block.h"

namespace trivium {
namespace {

#include "simd_portable.h"
constexpr const char* kName = "portable";
#include "vector_ops.inl"
#include "fetching.inl"
#include "matmul.inl"
#include "attention.inl"
#include "table.inl"

}  // namespace

const Kernels* portable_kernels() { return &kTable; }

}  // namespace trivium
