// The kernels of one instruction set, behind one table of functions chosen at run time.
//
// Every kernel's arithmetic for one row (a token, or a query of one head) is independent of the other rows it runs with, of
// how rows are tiled and of which thread runs it: that is what makes results bitwise reproducible.
#pragma once

#include <cstddef>
#include <cstdint>

// Accumulators live in registers only if the loops over them disappear; compilers give up on nested ones unless told.
#if defined(__clang__)
#define TRIVIUM_UNROLL _Pragma("unroll")
#else
#define TRIVIUM_UNROLL _Pragma("GCC unroll 16")
#endif
// A function with all that it calls in it. Left to itself GCC stops inlining as a file grows, and then sums live in memory.
#define TRIVIUM_FLATTEN __attribute__((flatten))

namespace trivium {

constexpr int kGroup = 16;       // output rows that a packed weight group interleaves
constexpr int kBlock = 32;       // weights that share a scale
constexpr int kSubtile = 16;     // keys stored together in the KV cache
constexpr int kTile = 128;       // keys whose softmax is computed together, counted from absolute position 0
constexpr int kMaxHeadDim = 4096;  // elements of a head
constexpr int kMaxQueries = 36;  // query rows that one attention call handles; whole tiles of 4 and of 6

// How weights are stored; see packed_block.h for the byte layouts.
enum class Family : uint8_t { kW4, kW6, kW8, kF16, kBF16, kF32 };

// A view of packed weights [rows, cols].
struct PackedView {
  const uint8_t* data;
  int32_t rows;
  int32_t cols;
  int32_t groups;       // ceil(rows / kGroup)
  int32_t blocks;       // ceil(cols / kBlock)
  int64_t group_bytes;  // bytes of one group over all columns
  Family family;
  bool nested;       // scales (and minima) are int8 times a float16 of 8 blocks, instead of float16 (packed_block.h)
  bool has_min;      // weight = scale * code + min; W4 without: scale * (code - 8)
  bool half_scales;  // one scale per 16 codes instead of 32 (W6, and W8 made of it)
  // Only within a matmul:
  bool expanded;      // groups unpacked for many rows: W4 with a byte per code; W6 and W8 in fours, if activations are int8
  uint8_t* unpacked;  // where groups of W6 or W8 shall go as they are unpacked, or nullptr
  const uint8_t* fetch;  // the next groups' bytes that a tile fetches as its share, or nullptr if it fetches for itself
  const uint8_t* beside;  // where other lines begin that it fetches as well, if `fetch` is set
  int64_t beside_step;    // bytes of them per block
};

// Lines that will be wanted soon, for a matmul to fetch: `count` runs of `lines` neighbours each.
struct FetchList {
  const uint8_t* base = nullptr;
  const int64_t* offsets = nullptr;  // of the runs, in bytes
  int count = 0, lines = 0;
};

enum class Activation : uint8_t { kInt8, kInt16, kFloat32 };

// Sums of products with int8 activations may start at the bits of this float: as long as they stay below 2^22 they are, read as a float, it
// and the sum. fma(float, scale, -kFloatBase * scale) then is the sum times the scale, rounded once as the product of a converted sum is, if
// kFloatBase * scale is exact: so scales of int8 have only 22 bits. That saves the conversion.
constexpr float kFloatBase = 12582912.0f;  // 3 * 2^22
constexpr int32_t kFloatBaseBits = 0x4b400000;

// A view of activations [m, cols]; which members are set follows from `kind`.
// int16 rows hold each four values in the order 0, 2, 1, 3: what the unpacked nibbles of a weight word line up with.
struct ActivationView {
  Activation kind;
  const int8_t* q8;
  const int16_t* q16;
  const float* x;
  const float* scales;  // [m, blocks]
  const float* sums;    // [m, blocks]: scale * sum of the block's integers
  const float* offsets;  // [m, blocks], of q8: -kFloatBase * scale
  const int32_t* biases;  // [m, blocks, 3], of q8 for W6 and W8: -128 * sum of a block's integers, and of those of its halves; and where
                          // sums start
  int64_t stride;       // elements from row to row of q8, q16 or x
  int64_t blocks;       // stride of scales and sums
};

// Where a matmul's result goes: out = acc + bias, or out += multiplier * (acc + bias).
struct MatmulOutput {
  float* out;
  int64_t stride;
  const float* bias;  // or nullptr
  bool accumulate;
  float multiplier;
};

// Attention of `queries` rows of one sequence and one KV head over key tiles [tile_begin, tile_end).
// State per row is (max, sum, acc[head_dim_padded]); the caller starts it with reset_attention and may merge several.
struct AttentionArgs {
  const float* q;                // [queries, head_dim_padded], scaled; a cache of codes takes the next two instead
  const int16_t* q_codes;        // [queries, head_dim_padded]
  const float* q_scales;         // [queries]
  const int32_t* last_key;       // per row: the last key position it may see
  int last;                      // the greatest of them
  const int32_t* first_key;      // per row: the first (sliding window)
  int queries;
  int head_dim_padded;           // multiple of 16
  const int32_t* blocks;         // block table of the sequence
  int block_size;
  const uint8_t* cache;          // the layer's KV cache
  int64_t block_stride;          // bytes from block to block
  int64_t k_offset;              // of this head's keys in a block, in bytes
  int64_t v_offset;              // of this head's values
  int64_t subtile_bytes;         // 16 keys, or values, of a head
  int tile_begin;
  int tile_end;
  const AttentionArgs* after;    // what the thread computes next, where its keys are: the first are fetched. Or nullptr
  float* max;                    // [queries]
  float* sum;                    // [queries]
  float* acc;                    // [queries, head_dim_padded]
};

struct Kernels {
  const char* name;
  bool bytes_by_bytes;  // whether matmul takes int8 activations for W6 and W8; else it takes int16

  // out[m, group rows] for groups [group_begin, group_end) and activation rows [row_begin, row_end). Fetches the lines of `beside`.
  void (*matmul)(const PackedView& w, const ActivationView& x, int row_begin, int row_end, int group_begin, int group_end,
                 const MatmulOutput& out, const FetchList& beside);
  // How many lines a product with `rows` rows, all groups of it, has time to fetch beside its weights.
  int64_t (*lines_beside)(const PackedView& w, Activation kind, int rows);

  // Quantise a row of n floats per block of 32 (the tail padded with zeros). `sums`, `offsets` and `biases` as in ActivationView; no biases if
  // nullptr.
  void (*quantize_int8)(const float* x, int64_t n, int8_t* q, float* scales, float* sums, float* offsets, int32_t* biases);
  void (*quantize_int16)(const float* x, int64_t n, int16_t* q, float* scales, float* sums);

  // out = x / sqrt(mean(x^2) + eps) * weight. out may be x.
  void (*rms_norm)(float* out, const float* x, const float* weight, int64_t n, float eps);
  // out = gate * sigmoid(gate) * up. out may be gate.
  void (*silu_mul)(float* out, const float* gate, const float* up, int64_t n);
  // y += a * x
  void (*axpy)(float* y, float a, const float* x, int64_t n);
  // Rotate one head in place and multiply it by `scale`; cos and sin hold rotary_dim / 2 values.
  void (*rope)(float* x, const float* cos, const float* sin, int rotary_dim, int head_dim, bool interleaved, float scale);

  // Round floats to the cache's type, saturating; NaN becomes finite, so that a fault of one request stays in it.
  void (*store_f16)(uint16_t* out, const float* x, int64_t n, int64_t stride);

  // The same as codes of int8: a key or a value of n elements at the code of its first element in a subtile (kv_cache.h). Keys are
  // spread over their head first, and filled up to a multiple of 16. Returns the scale.
  float (*store_key_i8)(int8_t* codes, const float* key, int64_t n);
  float (*store_value_i8)(int8_t* codes, const float* value, int64_t n);
  // Codes of a query for keys of int8, filled up to a multiple of 16. Returns the scale, which is not finite if the query is not.
  float (*quantize_query_i8)(int16_t* codes, const float* query, int64_t n);

  // And as codes of int16, for which keys and queries are not spread.
  float (*store_key_i16)(int16_t* codes, const float* key, int64_t n);
  float (*store_value_i16)(int16_t* codes, const float* value, int64_t n);
  float (*quantize_query_i16)(int16_t* codes, const float* query, int64_t n);

  void (*attention_f16)(const AttentionArgs& args);
  void (*attention_f32)(const AttentionArgs& args);
  void (*attention_i8)(const AttentionArgs& args);
  void (*attention_i16)(const AttentionArgs& args);
  // Merge state b into a, as the tiles of one call are merged.
  void (*merge_attention)(float* max_a, float* sum_a, float* acc_a, const float* max_b, const float* sum_b, const float* acc_b,
                          int head_dim_padded);

  // out[i] = exp((x[i] - max) * scale); returns the sum, in a fixed order. out may be x. exp(-inf) = 0.
  float (*exp_sum)(float* out, const float* x, int64_t n, float max, float scale);
  // Index of the largest element, the lowest index on ties; -1 if any element is NaN.
  int64_t (*argmax)(const float* x, int64_t n);
};

constexpr float kNoKey = -1e30f;  // the running maximum before any key; finite so that differences stay defined

// The table in use: the best this CPU runs, or the one TRIVIUM_ISA names.
const Kernels& kernels();

// Per instruction set; nullptr where the build or the CPU lacks it.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx2_vnni_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();
const Kernels* neon_dot_kernels();

}  // namespace trivium
