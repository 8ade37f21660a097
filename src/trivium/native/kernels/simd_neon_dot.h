// Integer dot products with ARM's dot-product extension (SDOT, UDOT). Included after simd_neon.h.
//
// Of one block: 32 weights of a group of 16 output rows with 32 activations of R rows. Only G = 1 is used here. SDOT adds four products
// of bytes to each int32 lane; four activations come from one lane of a register. 4-bit codes are both signed and unsigned bytes.
//
// An int16 activation is 256 * high + low, with a signed and an unsigned byte. Such blocks are computed in two halves of 8 outputs, so
// that the sums of 4 rows fit the registers.

template <int R, int G>
inline void dot_w4a8(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
  int32x4_t s[R][4];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = vdupq_n_s32(0);
  TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
    int8x8_t x[R];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) x[r] = vld1_s8(q + r * stride + 8 * j);
    TRIVIUM_UNROLL for (int i = 0; i < 4; i++) {
      const uint8x16_t c = vld1q_u8(codes + 64 * j + 16 * i);
      const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(c, vdupq_n_u8(15))), high = vreinterpretq_s8_u8(vshrq_n_u8(c, 4));
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][i] = vdotq_lane_s32(vdotq_lane_s32(s[r][i], low, x[r], 0), high, x[r], 1);
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {s[r][0], s[r][1], s[r][2], s[r][3]};
}

template <int R, int G>
inline void dot_w4a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, vi (*sum)[G]) {
  // From two fours of activations, each in the order 0, 2, 1, 3: their low bytes in order, then their high bytes.
  static constexpr uint8_t kSplit[16] = {0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15};
  const uint8x16_t split = vld1q_u8(kSplit);
  int32x4_t total[R][4];
  TRIVIUM_UNROLL for (int half = 0; half < 2; half++) {
    uint32x4_t low_sum[R][2];
    int32x4_t high_sum[R][2];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      low_sum[r][0] = low_sum[r][1] = vdupq_n_u32(0);
      high_sum[r][0] = high_sum[r][1] = vdupq_n_s32(0);
    }
    for (int j = 0; j < 4; j++) {
      uint8x16_t x[R];
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) x[r] = vqtbl1q_u8(vreinterpretq_u8_s16(vld1q_s16(q + r * stride + 8 * j)), split);
      TRIVIUM_UNROLL for (int i = 0; i < 2; i++) {
        const uint8x16_t c = vld1q_u8(codes + 64 * j + 32 * half + 16 * i);
        const uint8x16_t w0 = vandq_u8(c, vdupq_n_u8(15)), w1 = vshrq_n_u8(c, 4);
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          const int8x16_t y = vreinterpretq_s8_u8(x[r]);
          low_sum[r][i] = vdotq_laneq_u32(vdotq_laneq_u32(low_sum[r][i], w0, x[r], 0), w1, x[r], 1);
          high_sum[r][i] = vdotq_laneq_s32(high_sum[r][i], vreinterpretq_s8_u8(w0), y, 2);
          high_sum[r][i] = vdotq_laneq_s32(high_sum[r][i], vreinterpretq_s8_u8(w1), y, 3);
        }
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      TRIVIUM_UNROLL for (int i = 0; i < 2; i++) {
        total[r][2 * half + i] = vaddq_s32(vreinterpretq_s32_u32(low_sum[r][i]), vshlq_n_s32(high_sum[r][i], 8));
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {total[r][0], total[r][1], total[r][2], total[r][3]};
}

// Four 8-bit weights, in two pairs 32 bytes apart, of 8 outputs with the four activations in `Lane`.
template <int Lane, int R>
inline void dot_four(const uint8_t* codes, const int8x16_t* low, const int8x16_t* high, int32x4_t* weight_sum, int32x4_t (*low_sum)[2],
                     int32x4_t (*high_sum)[2]) {
  const uint16x8_t c0 = vreinterpretq_u16_u8(vld1q_u8(codes)), c1 = vreinterpretq_u16_u8(vld1q_u8(codes + 32));
  const int8x16_t w[2] = {vreinterpretq_s8_u16(vzip1q_u16(c0, c1)), vreinterpretq_s8_u16(vzip2q_u16(c0, c1))};
  TRIVIUM_UNROLL for (int i = 0; i < 2; i++) {
    weight_sum[i] = vdotq_s32(weight_sum[i], w[i], vdupq_n_s8(1));
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      low_sum[r][i] = vdotq_laneq_s32(low_sum[r][i], w[i], low[r], Lane);
      high_sum[r][i] = vdotq_laneq_s32(high_sum[r][i], w[i], high[r], Lane);
    }
  }
}

// `pairs` of weights from `codes`, 32 bytes each; a multiple of 8. With a signed weight w, w * low is w * (low - 128) + 128 * w, whose
// last sum all rows share.
template <int R, int G>
inline void dot_w8a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, int pairs, vi (*sum)[G]) {
  int32x4_t total[R][4];
  TRIVIUM_UNROLL for (int half = 0; half < 2; half++) {
    int32x4_t weight_sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    int32x4_t low_sum[R][2], high_sum[R][2];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) low_sum[r][0] = low_sum[r][1] = high_sum[r][0] = high_sum[r][1] = vdupq_n_s32(0);
    for (int t = 0; t < pairs; t += 8) {
      int8x16_t low[R], high[R];
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const int16_t* x = q + r * stride + 2 * t;
        const int8x16_t x0 = vreinterpretq_s8_s16(vld1q_s16(x)), x1 = vreinterpretq_s8_s16(vld1q_s16(x + 8));
        low[r] = veorq_s8(vuzp1q_s8(x0, x1), vdupq_n_s8(-128));
        high[r] = vuzp2q_s8(x0, x1);
      }
      const uint8_t* c = codes + 32 * t + 16 * half;
      dot_four<0, R>(c, low, high, weight_sum, low_sum, high_sum);
      dot_four<1, R>(c + 64, low, high, weight_sum, low_sum, high_sum);
      dot_four<2, R>(c + 128, low, high, weight_sum, low_sum, high_sum);
      dot_four<3, R>(c + 192, low, high, weight_sum, low_sum, high_sum);
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      TRIVIUM_UNROLL for (int i = 0; i < 2; i++) {
        const int32x4_t shared = vaddq_s32(low_sum[r][i], vshlq_n_s32(weight_sum[i], 7));
        total[r][2 * half + i] = vaddq_s32(shared, vshlq_n_s32(high_sum[r][i], 8));
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {total[r][0], total[r][1], total[r][2], total[r][3]};
}
