// Rows of activations in the forms that a linear layer's matrices ask for, and the product itself.
#pragma once

#include <vector>

#include "kernels/kernels.h"
#include "kv_ahead.h"
#include "model.h"
#include "pool.h"

namespace trivium {

class Activations {
 public:
  // Room for `rows` rows of `cols`, in the forms that `consumer` needs.
  void reserve(const Linear& consumer, ActivationMode mode, int rows, int cols);
  // Convert row `row` from `x` [cols]; float32 rows are copied. May be called for different rows at once.
  void set_row(int row, const float* x);
  // Take row `row` of `other`, which has the same columns and forms.
  void copy_row(int row, const Activations& other, int from);

  ActivationView view(Activation kind) const;
  int cols() const { return cols_; }

 private:
  struct Quantised {
    std::vector<float> scales, sums, offsets;  // offsets: of int8
  };
  int cols_ = 0, blocks_ = 0, stride_ = 0;
  bool use8_ = false, use16_ = false, use_float_ = false, use_biases_ = false;
  std::vector<int8_t> q8_;
  std::vector<int16_t> q16_;
  std::vector<float> x_;
  std::vector<int32_t> biases_;
  Quantised scale8_, scale16_;
};

// out[rows, linear.rows()] from rows [row_begin, row_begin + rows) of x; several loops of this kind may run as one (see ProductList).
struct Product {
  const Linear* linear;
  const Activations* x;
  int row_begin;
  int rows;
  MatmulOutput out;  // out points at row 0 of the activations
};

// Runs the products as one parallel loop, which also fetches `beside`.
void multiply(const std::vector<Product>& products, ActivationMode mode, const KvShare& beside = {});
inline void multiply(const Linear& linear, const Activations& x, int rows, const MatmulOutput& out, ActivationMode mode,
                     const KvShare& beside = {}) {
  multiply({Product{&linear, &x, 0, rows, out}}, mode, beside);
}

// How many cache lines a product has time to fetch.
int64_t lines_beside(const Linear& linear, ActivationMode mode, int rows);

// f(row) for every row; on the pool when there are enough of them to pay for it.
template <typename F>
void for_rows(int rows, const F& f) {
  constexpr int kRowsPerChunk = 2;
  if (rows < 2 * kRowsPerChunk) {
    for (int i = 0; i < rows; i++) f(i);
    return;
  }
  Pool::instance().run((rows + kRowsPerChunk - 1) / kRowsPerChunk, [&](int chunk) {
    for (int i = chunk * kRowsPerChunk; i < rows && i < (chunk + 1) * kRowsPerChunk; i++) f(i);
  });
}

}  // namespace trivium
