// The kernels for AVX-512 with VNNI. Compiled with flags of its own: nothing here may leak into other translation units.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "packed_block.h"

namespace trivium {
namespace {

#include "simd_avx512.h"
constexpr const char* kName = "avx512";
#include "vector_ops.inl"
#include "fetching.inl"
#include "matmul.inl"
#include "attention.inl"
#include "table.inl"

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

}  // namespace trivium
