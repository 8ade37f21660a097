// The table of this translation unit's kernels; kName is the instruction set's name. Included inside the anonymous namespace.

constexpr Kernels kTable = {
    kName,         Fours::kHave, matmul,       lines_beside,  quantize_int8,  quantize_int16, rms_norm,            silu_mul,         axpy,              rope,
    store_f16_row, store_key_i8, store_value_i8, quantize_query_i8, store_key_i16, store_value_i16, quantize_query_i16,
    attention<uint16_t>, attention<float>, attention<int8_t>, attention<int16_t>, merge_attention, exp_sum, argmax,
};
