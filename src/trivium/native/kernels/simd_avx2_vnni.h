// Integer dot products with AVX-VNNI: VPDPBUSD and VPDPWSSD on 256 bits. Included after simd_avx2.h.
//
// Of one block: 32 weights of a group of 16 output rows with 32 activations of R rows. Only G = 1 is used here.

// sum += the products of four bytes, or of two int16, per lane; here and now: left to itself GCC moves sums about, and spills them.
inline void add_fours(__m256i& sum, __m256i unsigned_bytes, __m256i signed_bytes) {
  sum = _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
  asm("" : "+x"(sum));
}
inline void add_pairs(__m256i& sum, __m256i x, __m256i y) {
  sum = _mm256_dpwssd_avx_epi32(sum, x, y);
  asm("" : "+x"(sum));
}

constexpr int kNarrowRows = 6, kWideRows = 6;  // activation rows per tile
constexpr int kAttentionRows = 6;              // query rows per tile
constexpr int kBesideLines = 0;  // see matmul.inl

template <int R, int G>
inline void start_sums(vi (*sum)[G], int32_t at) {
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = iset1(at);
}

template <int R, int G>
inline void dot_w4a8(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
  const __m256i mask = _mm256_set1_epi8(15);
  vi s[R][1];
  start_sums<R, 1>(s, kFloatBaseBits);
  TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
    const __m256i c0 = load256(codes + 64 * j), c1 = load256(codes + 64 * j + 32);
    TRIVIUM_UNROLL for (int high = 0; high < 2; high++) {
      const __m256i w0 = _mm256_and_si256(high ? _mm256_srli_epi16(c0, 4) : c0, mask);
      const __m256i w1 = _mm256_and_si256(high ? _mm256_srli_epi16(c1, 4) : c1, mask);
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const __m256i x = broadcast(q + r * stride + 8 * j + 4 * high);
        add_fours(s[r][0].a, w0, x);
        add_fours(s[r][0].b, w1, x);
      }
    }
  }
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = s[r][0];
}

constexpr bool kFloatSums = true;  // whether sums of products with int8 start at kFloatBase
struct Expansion {  // see matmul.inl
  static constexpr bool kPays = true;

  static void expand(const uint8_t* codes, uint8_t* out) { expand_codes(codes, out); }

  // dot_w4a8 on expanded codes, to the same bits.
  template <int R, int G>
  static void dot(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, vi (*sum)[G]) {
    vi s[R][1];
    start_sums<R, 1>(s, kFloatBaseBits);
    TRIVIUM_UNROLL for (int j = 0; j < 4; j++) {
      TRIVIUM_UNROLL for (int high = 0; high < 2; high++) {
        const __m256i w0 = load256(codes + 128 * j + 32 * high), w1 = load256(codes + 128 * j + 64 + 32 * high);
        TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
          const __m256i x = broadcast(q + r * stride + 8 * j + 4 * high);
          add_fours(s[r][0].a, w0, x);
          add_fours(s[r][0].b, w1, x);
        }
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = s[r][0];
  }
};

// Codes of 8 bits in fours, for int8 activations: per row the bytes of columns 4t to 4t + 3, plus 128.
struct Fours {
  static constexpr bool kHave = true;

  // Four t from pairs 2t and 2t + 1 (matrix.h), 64 bytes.
  static void store(uint8_t* to, const void* pairs) {
    const __m256i first = load256(pairs), second = load256(static_cast<const uint8_t*>(pairs) + 32);
    const __m256i order = _mm256_set_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200, 0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200);
    // Rows 0 to 3 and 8 to 11, then the others.
    const __m256i a = _mm256_shuffle_epi8(_mm256_unpacklo_epi16(first, second), order);
    const __m256i b = _mm256_shuffle_epi8(_mm256_unpackhi_epi16(first, second), order);
    const __m256i offset = _mm256_set1_epi8(-128);
    __m256i* out = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(out, _mm256_xor_si256(_mm256_permute2x128_si256(a, b, 0x20), offset));
    _mm256_storeu_si256(out + 1, _mm256_xor_si256(_mm256_permute2x128_si256(a, b, 0x31), offset));
  }

  // With `Count` fours. `biases`, `bias_stride` from row to row, make up for the 128.
  template <int R, int G, int Count>
  static void dot(const uint8_t* codes, int64_t, const int8_t* q, int64_t stride, const int32_t* biases, int64_t bias_stride,
                  vi (*sum)[G]) {
    vi s[R][1];
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) s[r][0] = iset1(biases[r * bias_stride]);
    TRIVIUM_UNROLL for (int t = 0; t < Count; t++) {
      const __m256i w0 = load256(codes + 64 * t), w1 = load256(codes + 64 * t + 32);
      TRIVIUM_UNROLL for (int r = 0; r < R; r++) {
        const __m256i x = broadcast(q + r * stride + 4 * t);
        add_fours(s[r][0].a, w0, x);
        add_fours(s[r][0].b, w1, x);
      }
    }
    TRIVIUM_UNROLL for (int r = 0; r < R; r++) sum[r][0] = s[r][0];
  }
};
