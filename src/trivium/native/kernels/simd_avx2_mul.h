// Integer dot products on AVX2: products of bytes or of int16, then a sum. Included after simd_avx2.h.
//
// Of one block: 32 weights of a group of 16 output rows with 32 activations of R rows. Only G = 1 is used here.

// sum += x, here and now: left to itself GCC computes the products of a whole block first, and spills them all.
inline void add_int16(__m256i& sum, __m256i x) {
  sum = _mm256_add_epi16(sum, x);
  asm("" : "+x"(sum));
}
// The same with the products of two int16, per lane.
inline void add_pairs(__m256i& sum, __m256i x, __m256i y) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
  asm("" : "+x"(sum));
}

constexpr int kNarrowRows = 4, kWideRows = 4;  // activation rows per tile
constexpr int kAttentionRows = 4;              // query rows per tile
constexpr int kBesideLines = 2;                // of other data that a tile fetches per block: its products take longer than its weights

template <int R, int G>
inline void dot_w4a8(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
  // 8 steps of at most 2 * 15 * 128 stay below 2^15, so int16 sums are exact within a block.
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i s[R][2];
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
  TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
    const __m256i c0 = load256(codes + 64 * j), c1 = load256(codes + 64 * j + 32);
    const __m256i l0 = _mm256_and_si256(c0, mask), l1 = _mm256_and_si256(c1, mask);
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      const __m256i x = broadcast(q + r * stride + 8 * j);
      add_int16(s[r][0], _mm256_maddubs_epi16(l0, x));
      add_int16(s[r][1], _mm256_maddubs_epi16(l1, x));
    }
    const __m256i h0 = _mm256_and_si256(_mm256_srli_epi16(c0, 4), mask), h1 = _mm256_and_si256(_mm256_srli_epi16(c1, 4), mask);
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
      const __m256i x = broadcast(q + r * stride + 8 * j + 4);
      add_int16(s[r][0], _mm256_maddubs_epi16(h0, x));
      add_int16(s[r][1], _mm256_maddubs_epi16(h1, x));
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {_mm256_madd_epi16(s[r][0], ones), _mm256_madd_epi16(s[r][1], ones)};
}

constexpr bool kFloatSums = false;  // whether sums of products with int8 start at kFloatBase
struct Fours {  // see matmul.inl
  static constexpr bool kHave = false;
};
struct Expansion {
  static constexpr bool kPays = true;

  static void expand(const uint8_t* codes, uint8_t* out) { expand_codes(codes, out); }

  // dot_w4a8 on expanded codes, to the same bits.
  template <int R, int G>
  static void dot(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i s[R][2];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = _mm256_setzero_si256();
    TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
      TRIVIUM_UNROLL for (int high = 0; high < 2; high++) {
        const __m256i w0 = load256(codes + 128 * j + 32 * high), w1 = load256(codes + 128 * j + 64 + 32 * high);
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          const __m256i x = broadcast(q + r * stride + 8 * j + 4 * high);
          add_int16(s[r][0], _mm256_maddubs_epi16(w0, x));
          add_int16(s[r][1], _mm256_maddubs_epi16(w1, x));
        }
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = {_mm256_madd_epi16(s[r][0], ones), _mm256_madd_epi16(s[r][1], ones)};
  }
};
