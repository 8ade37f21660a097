#include "activations.h"

#include <algorithm>
#include <cstring>

namespace trivium {

namespace {

constexpr int kRowBlock = 64;  // activation rows that stay in the second-level cache, with their results, while weights pass by
constexpr int kChunksPerThread = 3;

// A run of groups of one matrix for a run of rows.
struct Task {
  const Product* product;
  const Matrix* matrix;
  int first_row_of_matrix, row_begin, row_end, group_begin, group_end;
};

void add_tasks(const Product& product, int threads, std::vector<Task>* tasks) {
  int total_groups = 0;
  for (const auto& part : product.linear->parts) total_groups += part->view().groups;
  const int share = (total_groups + threads * kChunksPerThread - 1) / (threads * kChunksPerThread);
  const int chunk = std::max(2, (share + 1) / 2 * 2);  // even: some tiles have two groups
  for (int row = 0; row < product.rows; row += kRowBlock) {
    int offset = 0;
    for (const auto& part : product.linear->parts) {
      const int groups = part->view().groups;
      for (int g = 0; g < groups; g += chunk) {
        tasks->push_back({&product, part.get(), offset, product.row_begin + row,
                          product.row_begin + std::min(product.rows, row + kRowBlock), g, std::min(groups, g + chunk)});
      }
      offset += part->rows();
    }
  }
}

}  // namespace

void Activations::reserve(const Linear& consumer, ActivationMode mode, int rows, int cols) {
  cols_ = cols;
  blocks_ = (cols + kBlock - 1) / kBlock;
  stride_ = blocks_ * kBlock;
  use8_ = use16_ = use_float_ = use_biases_ = false;
  for (const auto& part : consumer.parts) {
    switch (part->activation(mode)) {
      case Activation::kInt8:
        use8_ = true;
        use_biases_ |= part->view().family != Family::kW4;
        break;
      case Activation::kInt16: use16_ = true; break;
      case Activation::kFloat32: use_float_ = true; break;
    }
  }
  const size_t values = static_cast<size_t>(rows) * stride_, scales = static_cast<size_t>(rows) * blocks_;
  const auto grow = [](auto& v, size_t n) {
    if (v.size() < n) v.resize(n);
  };
  if (use8_) {
    grow(q8_, values);
    grow(scale8_.scales, scales);
    grow(scale8_.sums, scales);
    grow(scale8_.offsets, scales);
    if (use_biases_) grow(biases_, 3 * scales);
  }
  if (use16_) {
    grow(q16_, values);
    grow(scale16_.scales, scales);
    grow(scale16_.sums, scales);
  }
  if (use_float_) grow(x_, values);
}

void Activations::set_row(int row, const float* x) {
  const size_t at = static_cast<size_t>(row) * stride_, scale_at = static_cast<size_t>(row) * blocks_;
  const Kernels& k = kernels();
  if (use8_) {
    int32_t* biases = use_biases_ ? biases_.data() + 3 * scale_at : nullptr;
    k.quantize_int8(x, cols_, q8_.data() + at, scale8_.scales.data() + scale_at, scale8_.sums.data() + scale_at,
                    scale8_.offsets.data() + scale_at, biases);
  }
  if (use16_) k.quantize_int16(x, cols_, q16_.data() + at, scale16_.scales.data() + scale_at, scale16_.sums.data() + scale_at);
  if (use_float_) std::memcpy(x_.data() + at, x, static_cast<size_t>(cols_) * sizeof(float));
}

void Activations::copy_row(int row, const Activations& other, int from) {
  const size_t to = static_cast<size_t>(row), source = static_cast<size_t>(from);
  const auto copy = [&](auto& mine, const auto& theirs, int width) {
    std::copy_n(theirs.data() + source * width, width, mine.data() + to * width);
  };
  if (use8_) {
    copy(q8_, other.q8_, stride_);
    copy(scale8_.scales, other.scale8_.scales, blocks_);
    copy(scale8_.sums, other.scale8_.sums, blocks_);
    copy(scale8_.offsets, other.scale8_.offsets, blocks_);
    if (use_biases_) copy(biases_, other.biases_, 3 * blocks_);
  }
  if (use16_) {
    copy(q16_, other.q16_, stride_);
    copy(scale16_.scales, other.scale16_.scales, blocks_);
    copy(scale16_.sums, other.scale16_.sums, blocks_);
  }
  if (use_float_) copy(x_, other.x_, stride_);
}

ActivationView Activations::view(Activation kind) const {
  const Quantised& scale = kind == Activation::kInt8 ? scale8_ : scale16_;
  return {kind,          q8_.data(), q16_.data(), x_.data(), scale.scales.data(), scale.sums.data(), scale8_.offsets.data(), biases_.data(),
          stride_, blocks_};
}

void multiply(const std::vector<Product>& products, ActivationMode mode, const KvShare& beside) {
  Pool& pool = Pool::instance();
  std::vector<Task> tasks;
  for (const Product& product : products) add_tasks(product, pool.num_threads(), &tasks);
  const int count = static_cast<int>(tasks.size());
  pool.run(count, [&](int i) {
    const Task& t = tasks[static_cast<size_t>(i)];
    MatmulOutput out = t.product->out;
    out.out += t.first_row_of_matrix;
    const std::vector<float>& bias = t.product->linear->bias;
    out.bias = bias.empty() ? nullptr : bias.data() + t.first_row_of_matrix;
    const Activation kind = t.matrix->activation(mode);
    kernels().matmul(t.matrix->view(), t.product->x->view(kind), t.row_begin, t.row_end, t.group_begin, t.group_end, out,
                     beside.of_task(i, count));
  });
}

// With more rows than are multiplied at a time a step has prompts, whose attention waits for arithmetic.
int64_t lines_beside(const Linear& linear, ActivationMode mode, int rows) {
  int64_t lines = 0;
  for (const auto& part : linear.parts) lines += rows > kRowBlock ? 0 : kernels().lines_beside(part->view(), part->activation(mode), rows);
  return lines;
}

}  // namespace trivium
