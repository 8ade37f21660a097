// The table of this translation unit's kernels; kName is the instruction set's name. Included inside the anonymous namespace.

constexpr Kernels kTable = {
    kName,     matmul,        quantize_int8,          quantize_int16,   rms_norm,        silu_mul, axpy,
    rope,      store_f16_row, attention<uint16_t>,    attention<float>, merge_attention, exp_sum,  argmax,
};
