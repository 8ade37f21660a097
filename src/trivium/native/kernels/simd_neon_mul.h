// Integer dot products on NEON (ARMv8.0): widening products. Included after simd_neon.h.
//
// Of one block: 32 weights of a group of 16 output rows with 32 activations of R rows. Only G = 1 is used here. A block is computed in
// two halves of 8 outputs, so that the sums of 4 rows fit the registers. A register of codes holds several codes of one output side
// by side; the partial sums of an output stay apart until the end, where they are added in pairs.

// Lane `i`, as bytes or as int16, in all four lanes.
inline int8x16_t broadcast_8(int32x2_t x, int i) { return vreinterpretq_s8_s32(vdupq_n_s32(x[i])); }
inline int16x8_t broadcast_16(int32x4_t x, int i) { return vreinterpretq_s16_s32(vdupq_n_s32(x[i])); }
inline int32x2_t load_8(const int8_t* p) { return vreinterpret_s32_s8(vld1_s8(p)); }
inline int32x4_t load_16(const int16_t* p) { return vreinterpretq_s32_s16(vld1q_s16(p)); }

template <int R, int G>
inline void dot_w4a8(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
  // 8 products of at most 15 * 128 per lane stay below 2^15, so int16 sums are exact within a block.
  int32x4_t total[R][4];
  TRIVIUM_UNROLL for (int half = 0; half < 2; half++) {
    int16x8_t s[R][4];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = vdupq_n_s16(0);
    for (int j = 0; j < 4; j++) {
      int32x2_t x[R];
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) x[r] = load_8(q + r * stride + 8 * j);
      const uint8x16_t c0 = vld1q_u8(codes + 64 * j + 32 * half), c1 = vld1q_u8(codes + 64 * j + 32 * half + 16);
      TRIVIUM_UNROLL for (int nibble = 0; nibble < 2; nibble++) {
        const int8x16_t w0 = vreinterpretq_s8_u8(nibble == 0 ? vandq_u8(c0, vdupq_n_u8(15)) : vshrq_n_u8(c0, 4));
        const int8x16_t w1 = vreinterpretq_s8_u8(nibble == 0 ? vandq_u8(c1, vdupq_n_u8(15)) : vshrq_n_u8(c1, 4));
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          const int8x16_t y = broadcast_8(x[r], nibble);
          s[r][0] = vmlal_s8(s[r][0], vget_low_s8(w0), vget_low_s8(y));
          s[r][1] = vmlal_high_s8(s[r][1], w0, y);
          s[r][2] = vmlal_s8(s[r][2], vget_low_s8(w1), vget_low_s8(y));
          s[r][3] = vmlal_high_s8(s[r][3], w1, y);
        }
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      total[r][2 * half] = vpaddq_s32(vpaddlq_s16(s[r][0]), vpaddlq_s16(s[r][1]));
      total[r][2 * half + 1] = vpaddq_s32(vpaddlq_s16(s[r][2]), vpaddlq_s16(s[r][3]));
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {total[r][0], total[r][1], total[r][2], total[r][3]};
}

template <int R, int G>
inline void dot_w4a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, vi (*sum)[G]) {
  int32x4_t total[R][4];
  TRIVIUM_UNROLL for (int half = 0; half < 2; half++) {
    int32x4_t s[R][4];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = vdupq_n_s32(0);
    for (int j = 0; j < 4; j++) {
      int32x4_t x[R];
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) x[r] = load_16(q + r * stride + 8 * j);
      TRIVIUM_UNROLL for (int quarter = 0; quarter < 2; quarter++) {
        const uint8x16_t c = vld1q_u8(codes + 64 * j + 32 * half + 16 * quarter);
        const uint16x8_t low = vreinterpretq_u16_u8(vandq_u8(c, vdupq_n_u8(15))), high = vreinterpretq_u16_u8(vshrq_n_u8(c, 4));
        const uint16x8_t parts[4] = {vandq_u16(low, vdupq_n_u16(255)), vshrq_n_u16(low, 8), vandq_u16(high, vdupq_n_u16(255)),
                                     vshrq_n_u16(high, 8)};
        TRIVIUM_UNROLL for (int t = 0; t < 4; t++) {
          const int16x8_t w = vreinterpretq_s16_u16(parts[t]);
          TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
            const int16x8_t y = broadcast_16(x[r], t);
            s[r][2 * quarter] = vmlal_s16(s[r][2 * quarter], vget_low_s16(w), vget_low_s16(y));
            s[r][2 * quarter + 1] = vmlal_high_s16(s[r][2 * quarter + 1], w, y);
          }
        }
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      total[r][2 * half] = vpaddq_s32(s[r][0], s[r][1]);
      total[r][2 * half + 1] = vpaddq_s32(s[r][2], s[r][3]);
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {total[r][0], total[r][1], total[r][2], total[r][3]};
}

// `pairs` of weights from `codes`, 32 bytes each; a multiple of 4.
template <int R, int G>
inline void dot_w8a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, int pairs, vi (*sum)[G]) {
  const int8_t* weights = reinterpret_cast<const int8_t*>(codes);
  int32x4_t total[R][4];
  TRIVIUM_UNROLL for (int half = 0; half < 2; half++) {
    int32x4_t s[R][4];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = vdupq_n_s32(0);
    for (int t = 0; t < pairs; t += 4) {
      int32x4_t x[R];
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) x[r] = load_16(q + r * stride + 2 * t);
      TRIVIUM_UNROLL for (int i = 0; i < 4; i++) {
        const int8x16_t c = vld1q_s8(weights + 32 * (t + i) + 16 * half);
        const int16x8_t w0 = vmovl_s8(vget_low_s8(c)), w1 = vmovl_high_s8(c);
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          const int16x8_t y = broadcast_16(x[r], i);
          s[r][0] = vmlal_s16(s[r][0], vget_low_s16(w0), vget_low_s16(y));
          s[r][1] = vmlal_high_s16(s[r][1], w0, y);
          s[r][2] = vmlal_s16(s[r][2], vget_low_s16(w1), vget_low_s16(y));
          s[r][3] = vmlal_high_s16(s[r][3], w1, y);
        }
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      total[r][2 * half] = vpaddq_s32(s[r][0], s[r][1]);
      total[r][2 * half + 1] = vpaddq_s32(s[r][2], s[r][3]);
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {total[r][0], total[r][1], total[r][2], total[r][3]};
}
