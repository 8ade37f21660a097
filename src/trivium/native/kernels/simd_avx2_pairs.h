// Products of int16 on 256 bits, over what adds those of pairs: `add_pairs` of simd_avx2_mul.h or simd_avx2_vnni.h, which comes before.

// z + x[0] * y[0] + x[1] * y[1] per lane
inline vi dot_pairs(vpairs x, __m256i y, vi z) {
  add_pairs(z.a, x.a, y);
  add_pairs(z.b, x.b, y);
  return z;
}

template <int R, int G>
inline void dot_w4a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, vi (*sum)[G]) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i even = _mm256_set1_epi16(255);
  __m256i s[R][2];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
  TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
    const __m256i c0 = load256(codes + 64 * j), c1 = load256(codes + 64 * j + 32);
    TRIVIUM_UNROLL for (int high = 0; high < 2; high++) {
      const __m256i n0 = _mm256_and_si256(high ? _mm256_srli_epi16(c0, 4) : c0, mask);
      const __m256i n1 = _mm256_and_si256(high ? _mm256_srli_epi16(c1, 4) : c1, mask);
      TRIVIUM_UNROLL for (int odd = 0; odd < 2; odd++) {
        const __m256i w0 = odd ? _mm256_srli_epi16(n0, 8) : _mm256_and_si256(n0, even);
        const __m256i w1 = odd ? _mm256_srli_epi16(n1, 8) : _mm256_and_si256(n1, even);
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          const __m256i x = broadcast(q + r * stride + 8 * j + 4 * high + 2 * odd);
          add_pairs(s[r][0], w0, x);
          add_pairs(s[r][1], w1, x);
        }
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {s[r][0], s[r][1]};
}

// `pairs` of weights from `codes`, 32 bytes each; an even number. Two at a time: GCC rotates a loop over one, at the cost of a copy and
// a spill for every sum.
template <int R, int G>
inline void dot_w8a16(const uint8_t* codes, int64_t, const int16_t* q, int64_t stride, int pairs, vi (*sum)[G]) {
  __m256i s[R][2];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
  for (int begin = 0; begin < pairs; begin += 2) {
    TRIVIUM_UNROLL for (int t = begin; t < begin + 2; t++) {
      const __m256i w0 = _mm256_cvtepi8_epi16(load128(codes + 32 * t)), w1 = _mm256_cvtepi8_epi16(load128(codes + 32 * t + 16));
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const __m256i x = broadcast(q + r * stride + 2 * t);
        add_pairs(s[r][0], w0, x);
        add_pairs(s[r][1], w1, x);
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {s[r][0], s[r][1]};
}
