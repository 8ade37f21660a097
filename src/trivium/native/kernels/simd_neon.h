// 16 lanes on NEON (ARMv8.0), as four registers. Included once per translation unit, inside an anonymous namespace; its dot products
// are in simd_neon_dot.h and simd_neon_mul.h. Needs <arm_neon.h>, <cstdint>.

struct vf {
  float32x4_t a, b, c, d;
};
struct vi {
  int32x4_t a, b, c, d;
};

inline vf load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void store(float* p, vf x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
inline vf set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
inline vf zero() { return set1(0.0f); }
inline vf operator+(vf x, vf y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)}; }
inline vf operator-(vf x, vf y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)}; }
inline vf operator*(vf x, vf y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)}; }
inline vf operator/(vf x, vf y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)}; }
inline vf fma(vf x, vf y, vf z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
// p < q ? x : y per lane
inline float32x4_t quarter_less(float32x4_t p, float32x4_t q, float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(p, q), x, y); }
inline vf select_less(vf p, vf q, vf x, vf y) {
  return {quarter_less(p.a, q.a, x.a, y.a), quarter_less(p.b, q.b, x.b, y.b), quarter_less(p.c, q.c, x.c, y.c),
          quarter_less(p.d, q.d, x.d, y.d)};
}
// NaN in `x` gives y; FMAX and FMIN would keep it.
inline vf max(vf x, vf y) { return select_less(y, x, x, y); }
inline vf min(vf x, vf y) { return select_less(x, y, x, y); }

// To nearest even. Out of range it saturates and NaN gives 0, unlike x86: no finite result depends on either.
inline vi to_int(vf x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c), vcvtnq_s32_f32(x.d)}; }
inline vf to_float(vi x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)}; }
inline vi bits(vf x) {
  return {vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b), vreinterpretq_s32_f32(x.c), vreinterpretq_s32_f32(x.d)};
}
inline vf from_bits(vi x) {
  return {vreinterpretq_f32_s32(x.a), vreinterpretq_f32_s32(x.b), vreinterpretq_f32_s32(x.c), vreinterpretq_f32_s32(x.d)};
}
inline vi iset1(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
inline vi izero() { return iset1(0); }
inline vi operator+(vi x, vi y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)}; }
inline vi operator&(vi x, vi y) { return {vandq_s32(x.a, y.a), vandq_s32(x.b, y.b), vandq_s32(x.c, y.c), vandq_s32(x.d, y.d)}; }
inline vi imax(vi x, vi y) { return {vmaxq_s32(x.a, y.a), vmaxq_s32(x.b, y.b), vmaxq_s32(x.c, y.c), vmaxq_s32(x.d, y.d)}; }
inline int32_t reduce_max(vi x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }
inline int32_t reduce_add(vi x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
inline vi shift_left_23(vi x) { return {vshlq_n_s32(x.a, 23), vshlq_n_s32(x.b, 23), vshlq_n_s32(x.c, 23), vshlq_n_s32(x.d, 23)}; }
// Sum of the lanes, in the order that all instruction sets have: halves onto each other until one lane is left.
inline float sum_lanes(vf x) {
  const float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
inline float max_lanes(vf x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.c), vmaxq_f32(x.b, x.d))); }
inline vi iota() {
  const int32x4_t v = {0, 1, 2, 3};
  return {v, vaddq_s32(v, vdupq_n_s32(4)), vaddq_s32(v, vdupq_n_s32(8)), vaddq_s32(v, vdupq_n_s32(12))};
}
inline void istore(int32_t* p, vi x) {
  vst1q_s32(p, x.a);
  vst1q_s32(p + 4, x.b);
  vst1q_s32(p + 8, x.c);
  vst1q_s32(p + 12, x.d);
}
// p < q ? x : y per lane, on integers
inline float32x4_t quarter_iless(int32x4_t p, int32x4_t q, float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_s32(p, q), x, y); }
inline vf select_iless(vi p, vi q, vf x, vf y) {
  return {quarter_iless(p.a, q.a, x.a, y.a), quarter_iless(p.b, q.b, x.b, y.b), quarter_iless(p.c, q.c, x.c, y.c),
          quarter_iless(p.d, q.d, x.d, y.d)};
}

inline vf load_f16(const uint16_t* p) {
  const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(p)), y = vreinterpretq_f16_u16(vld1q_u16(p + 8));
  return {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x), vcvt_f32_f16(vget_low_f16(y)), vcvt_high_f32_f16(y)};
}
inline void store_f16(uint16_t* p, vf x) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
  vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
inline vf load_i8(const int8_t* p) {
  const int8x16_t x = vld1q_s8(p);
  const int16x8_t a = vmovl_s8(vget_low_s8(x)), b = vmovl_high_s8(x);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), vcvtq_f32_s32(vmovl_high_s16(a)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))),
          vcvtq_f32_s32(vmovl_high_s16(b))};
}
inline float32x4_t widen_bf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
inline vf load_bf16(const uint16_t* p) {
  return {widen_bf16(vld1_u16(p)), widen_bf16(vld1_u16(p + 4)), widen_bf16(vld1_u16(p + 8)), widen_bf16(vld1_u16(p + 12))};
}
// Saturated to int8 / int16, 16 values.
inline void store_int16(int16_t* p, vi x) {
  vst1q_s16(p, vqmovn_high_s32(vqmovn_s32(x.a), x.b));
  vst1q_s16(p + 8, vqmovn_high_s32(vqmovn_s32(x.c), x.d));
}
inline void store_int8(int8_t* p, vi x) {
  vst1q_s8(p, vqmovn_high_s16(vqmovn_s16(vqmovn_high_s32(vqmovn_s32(x.a), x.b)), vqmovn_high_s32(vqmovn_s32(x.c), x.d)));
}

// 16 pairs of int8 or int16, as int16: the first of each pair in a and b, the second in c and d.
struct vpairs {
  int16x8_t a, b, c, d;
};
inline vpairs load_pairs(const int8_t* p) {
  const int8x16x2_t x = vld2q_s8(p);
  return {vmovl_s8(vget_low_s8(x.val[0])), vmovl_high_s8(x.val[0]), vmovl_s8(vget_low_s8(x.val[1])), vmovl_high_s8(x.val[1])};
}
inline vpairs load_pairs(const int16_t* p) {
  const int16x8x2_t x = vld2q_s16(p), y = vld2q_s16(p + 16);
  return {x.val[0], y.val[0], x.val[1], y.val[1]};
}
// One pair of int16, in every lane.
inline int16x4_t set1_pair(const int16_t* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return vreinterpret_s16_s32(vdup_n_s32(x));
}
// z + x[0] * y[0] + x[1] * y[1] per lane
inline vi dot_pairs(vpairs x, int16x4_t y, vi z) {
  const int32x4_t a = vmlal_lane_s16(z.a, vget_low_s16(x.a), y, 0), b = vmlal_high_lane_s16(z.b, x.a, y, 0);
  const int32x4_t c = vmlal_lane_s16(z.c, vget_low_s16(x.b), y, 0), d = vmlal_high_lane_s16(z.d, x.b, y, 0);
  return {vmlal_lane_s16(a, vget_low_s16(x.c), y, 1), vmlal_high_lane_s16(b, x.c, y, 1), vmlal_lane_s16(c, vget_low_s16(x.d), y, 1),
          vmlal_high_lane_s16(d, x.d, y, 1)};
}

constexpr int kNarrowRows = 4;     // activation rows per tile
constexpr int kWideRows = 4;       // the same with many rows
constexpr int kWideGroups = 1;     // and the groups of 16 outputs in it
constexpr bool kFloatSums = false;  // whether sums of products with int8 start at kFloatBase
struct Expansion {  // see matmul.inl
  static constexpr bool kPays = false;
};
struct Fours {  // the same
  static constexpr bool kHave = false;
};
// Query rows per tile, and how many vectors of keys or values they share: 24 of the 32 registers accumulate at most.
constexpr int kAttentionRows = 6;
constexpr int kBesideLines = 0;  // see matmul.inl
constexpr int attention_width(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

#include "simd_plain.h"
