// Operations that an instruction set has no shorter way for than by way of others. Included at the end of its simd_*.h.

// Lane r is the sum of the lanes of rows[r], or their maximum; lanes from R on are 0. At most 16 rows.
template <int R>
inline vf sum_rows(const vf* rows) {
  float sums[16] = {};
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) sums[r] = sum_lanes(rows[r]);
  return load(sums);
}
template <int R>
inline vf max_rows(const vf* rows) {
  float most[16] = {};
  TRIVIUM_UNROLL for (int r = 0; r < R; r++) most[r] = max_lanes(rows[r]);
  return load(most);
}

// The nearest whole number, the even one of two.
inline vf nearest(vf a) { return to_float(to_int(a)); }

// p * 2^n for a whole n from `low`, at least -126, to 127; 0 if n is less.
inline vf times_power(vf p, vf n, vf low) {
  return select_less(n, low, zero(), p * from_bits(shift_left_23(to_int(n) + iset1(127))));
}
