// IEEE half precision in software, for code that runs on any CPU.
#pragma once

#include <cstdint>
#include <cstring>

namespace trivium {

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  } else {  // zero or subnormal: mantissa * 2^-24 is exact in float
    const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &value, sizeof bits);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounds to nearest even; overflow gives infinity.
static inline uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // rounds beyond 65504
  if (bits < 0x38800000u) {                        // subnormal: let the float unit round to a multiple of 2^-24
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value += 0.5f;
    uint32_t sum;
    std::memcpy(&sum, &value, sizeof sum);
    return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
  }
  bits += 0xc8000fffu + ((bits >> 13) & 1u);  // rebias the exponent by -112 and round to nearest even
  return static_cast<uint16_t>(sign | (bits >> 13));
}

}  // namespace trivium
