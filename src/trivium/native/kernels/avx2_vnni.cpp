// The kernels for AVX2 with AVX-VNNI. Compiled with flags of its own: nothing here may leak into other translation units.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "packed_block.h"

namespace trivium {
namespace {

#include "simd_avx2.h"
#include "simd_avx2_vnni.h"
#include "simd_avx2_pairs.h"
constexpr const char* kName = "avx2_vnni";
#include "vector_ops.inl"
#include "fetching.inl"
#include "matmul.inl"
#include "attention.inl"
#include "table.inl"

}  // namespace

const Kernels* avx2_vnni_kernels() { return &kTable; }

}  // namespace trivium
