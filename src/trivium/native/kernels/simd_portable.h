// 16 lanes for any CPU, with the compiler's vector extension. Included once per translation unit, inside an anonymous namespace.
// Needs <cstdint>, <cstring>, <cmath>.

typedef float float16v __attribute__((vector_size(64)));
typedef int32_t int16v __attribute__((vector_size(64)));
typedef uint32_t uint16v __attribute__((vector_size(64)));

struct vf {
  float16v v;
};
struct vi {
  int16v v;
};

inline vf load(const float* p) {
  vf a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
inline void store(float* p, vf a) { std::memcpy(p, &a, sizeof a); }
inline vf set1(float a) { return {a - float16v{}}; }
inline vf zero() { return {float16v{}}; }
inline vf operator+(vf a, vf b) { return {a.v + b.v}; }
inline vf operator-(vf a, vf b) { return {a.v - b.v}; }
inline vf operator*(vf a, vf b) { return {a.v * b.v}; }
inline vf operator/(vf a, vf b) { return {a.v / b.v}; }
// Not fused here: what counts is that it is always the same.
inline vf fma(vf a, vf b, vf c) { return {a.v * b.v + c.v}; }
// NaN in `a` gives b.
inline vf max(vf a, vf b) { return {a.v > b.v ? a.v : b.v}; }
inline vf min(vf a, vf b) { return {a.v < b.v ? a.v : b.v}; }
// a < b ? x : y per lane
inline vf select_less(vf a, vf b, vf x, vf y) { return {a.v < b.v ? x.v : y.v}; }

inline vi to_int(vf a) {  // to nearest even; out of range and NaN give the most negative integer, as x86 does
  vi r;
  for (int i = 0; i < 16; i++) r.v[i] = __builtin_fabsf(a.v[i]) < 2147483648.0f ? static_cast<int32_t>(__builtin_nearbyintf(a.v[i])) : INT32_MIN;
  return r;
}
inline vf to_float(vi a) { return {__builtin_convertvector(a.v, float16v)}; }
inline vi bits(vf a) { return {reinterpret_cast<int16v>(a.v)}; }
inline vf from_bits(vi a) { return {reinterpret_cast<float16v>(a.v)}; }
inline vi iset1(int32_t a) { return {a + int16v{}}; }
inline vi izero() { return {int16v{}}; }
// Wraps as the other instruction sets do; signed overflow would be undefined.
inline vi operator+(vi a, vi b) { return {reinterpret_cast<int16v>(reinterpret_cast<uint16v>(a.v) + reinterpret_cast<uint16v>(b.v))}; }
inline vi operator&(vi a, vi b) { return {a.v & b.v}; }
inline vi imax(vi a, vi b) { return {a.v > b.v ? a.v : b.v}; }
// Sum of the lanes, in the order that all instruction sets have: halves onto each other until one lane is left.
inline float sum_lanes(vf a) {
  float t[16];
  store(t, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) t[i] += t[i + width];
  }
  return t[0];
}
inline float max_lanes(vf a) {
  float t[16];
  store(t, a);
  for (int i = 1; i < 16; i++) t[0] = t[i] > t[0] ? t[i] : t[0];
  return t[0];
}
inline int32_t reduce_max(vi a) {
  int32_t m = a.v[0];
  for (int i = 1; i < 16; i++) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline int32_t reduce_add(vi a) {
  uint32_t s = 0;
  for (int i = 0; i < 16; i++) s += static_cast<uint32_t>(a.v[i]);
  return static_cast<int32_t>(s);
}
inline vi shift_left_23(vi a) { return {a.v << 23}; }
inline vi iota() { return {int16v{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}; }
inline void istore(int32_t* p, vi a) { std::memcpy(p, &a, sizeof a); }
// a < b ? x : y per lane, on integers
inline vf select_iless(vi a, vi b, vf x, vf y) { return {a.v < b.v ? x.v : y.v}; }

inline vf load_f16(const uint16_t* p) {
  vf r;
  for (int i = 0; i < 16; i++) r.v[i] = half_to_float(p[i]);
  return r;
}
inline void store_f16(uint16_t* p, vf a) {
  for (int i = 0; i < 16; i++) p[i] = float_to_half(a.v[i]);
}
inline vf load_i8(const int8_t* p) {
  vf r;
  for (int i = 0; i < 16; i++) r.v[i] = p[i];
  return r;
}
inline vf load_bf16(const uint16_t* p) {
  vi r;
  for (int i = 0; i < 16; i++) r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16);
  return from_bits(r);
}
// Saturated to int8 / int16, 16 values.
inline void store_int8(int8_t* p, vi a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}
inline void store_int16(int16_t* p, vi a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<int16_t>(a.v[i] < -32768 ? -32768 : a.v[i] > 32767 ? 32767 : a.v[i]);
}

// 16 pairs of int8 or int16, a pair per lane: the first and the second of each.
struct vpairs {
  int16v a, b;
};
template <typename T>
inline vpairs load_pairs(const T* p) {
  vpairs r;
  for (int i = 0; i < 16; i++) {
    r.a[i] = p[2 * i];
    r.b[i] = p[2 * i + 1];
  }
  return r;
}
// One pair of int16, in every lane.
struct pair1 {
  int32_t a, b;
};
inline pair1 set1_pair(const int16_t* p) { return {p[0], p[1]}; }
// z + x[0] * y[0] + x[1] * y[1] per lane
inline vi dot_pairs(vpairs x, pair1 y, vi z) { return {z.v + x.a * y.a + x.b * y.b}; }

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
// Query rows per tile, and how many vectors of keys or values they share.
constexpr int kAttentionRows = 4;
constexpr int kBesideLines = 0;  // see matmul.inl
constexpr int attention_width(int) { return 1; }

// Integer dot products of one block: 32 weights of G groups of 16 output rows, `step` bytes apart, with 32 activations of R rows.
// Only G = 1 is used here.

template <int R, int G>
inline void dot_w4a8(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
  for (int r = 0; r < R; r++) {
    int32_t s[16] = {};
    for (int j = 0; j < 4; j++) {
      const int8_t* x = q + r * stride + 8 * j;
      for (int lane = 0; lane < 16; lane++) {
        const uint8_t* c = codes + 64 * j + 4 * lane;
        for (int i = 0; i < 4; i++) s[lane] += (c[i] & 15) * x[i] + (c[i] >> 4) * x[i + 4];
      }
    }
    std::memcpy(&sum[r][0], s, sizeof s);
  }
}

template <int R, int G>
inline void dot_w4a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, vi (*sum)[G]) {
  static constexpr int kOrder[4] = {0, 2, 1, 3};  // where ActivationView keeps value i of four
  for (int r = 0; r < R; r++) {
    int32_t s[16] = {};
    for (int j = 0; j < 4; j++) {
      const int16_t* x = q + r * stride + 8 * j;
      for (int lane = 0; lane < 16; lane++) {
        const uint8_t* c = codes + 64 * j + 4 * lane;
        for (int i = 0; i < 4; i++) s[lane] += (c[i] & 15) * x[kOrder[i]] + (c[i] >> 4) * x[4 + kOrder[i]];
      }
    }
    std::memcpy(&sum[r][0], s, sizeof s);
  }
}

// `pairs` of weights from `codes`, 32 bytes each.
template <int R, int G>
inline void dot_w8a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, int pairs, vi (*sum)[G]) {
  const int8_t* w = reinterpret_cast<const int8_t*>(codes);
  for (int r = 0; r < R; r++) {
    int32_t s[16] = {};
    for (int t = 0; t < pairs; t++) {
      const int16_t* x = q + r * stride + 2 * t;
      for (int lane = 0; lane < 16; lane++) s[lane] += w[32 * t + 2 * lane] * x[0] + w[32 * t + 2 * lane + 1] * x[1];
    }
    std::memcpy(&sum[r][0], s, sizeof s);
  }
}

#include "simd_plain.h"
