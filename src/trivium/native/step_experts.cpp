// The mixture-of-experts feed-forward of a step.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "step.h"

namespace trivium {

namespace {

template <typename T>
void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

// Scores of one token's experts in place, in float32.
void score(const ModelConfig& config, float* logits) {
  const int count = config.num_experts;
  if (config.sigmoid_scoring) {
    for (int e = 0; e < count; e++) logits[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  const float largest = *std::max_element(logits, logits + count);
  float total = 0.0f;
  for (int e = 0; e < count; e++) {
    logits[e] = std::exp(logits[e] - largest);
    total += logits[e];
  }
  for (int e = 0; e < count; e++) logits[e] /= total;
}

}  // namespace

// Chooses the experts of every token: slot_experts_ and slot_weights_ [rows, experts_per_token], by ascending expert.
void Stepper::route(const Layer& layer, int rows) {
  const int count = config_.num_experts, top = config_.experts_per_token;
  for_rows(rows, [&](int i) {
    float* scores = router_logits_.data() + static_cast<int64_t>(i) * count;
    score(config_, scores);
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int32_t e) { return layer.router_bias.empty() ? scores[e] : scores[e] + layer.router_bias[e]; };
    // A NaN score compares false both ways; the index keeps the order strict.
    std::partial_sort(order.begin(), order.begin() + top, order.end(), [&](int32_t a, int32_t b) {
      const float va = value(a), vb = value(b);
      if (va > vb) return true;
      if (va < vb) return false;
      return a < b;
    });
    std::sort(order.begin(), order.begin() + top);
    float total = 0.0f;
    for (int k = 0; k < top; k++) total += scores[order[k]];
    const float scale = config_.normalize ? config_.expert_scale / std::max(total, config_.norm_min) : config_.expert_scale;
    for (int k = 0; k < top; k++) {
      slot_experts_[static_cast<size_t>(i) * top + k] = order[k];
      slot_weights_[static_cast<size_t>(i) * top + k] = scores[order[k]] * scale;
    }
  });
}

void Stepper::experts(int index, int rows) {
  const Layer& layer = model_.layers[static_cast<size_t>(index)];
  const int hidden = config_.hidden_size, inner = config_.expert_size, top = config_.experts_per_token;
  const int slots = rows * top;
  norm_rows(layer.ffn_norm, layer.experts.front().gate_up, rows, &hidden_act_);
  router_act_.reserve(layer.router, config_.activation, rows, hidden);
  for_rows(rows, [&](int i) { router_act_.set_row(i, normed_.data() + static_cast<int64_t>(i) * hidden); });
  grow(router_logits_, static_cast<size_t>(rows) * config_.num_experts);
  multiply(layer.router, router_act_, rows, {router_logits_.data(), config_.num_experts, nullptr, false, 1.0f}, config_.activation);
  grow(slot_experts_, static_cast<size_t>(slots));
  grow(slot_weights_, static_cast<size_t>(slots));
  route(layer, rows);

  // Counting sort of the slots by expert; within an expert in the order of the tokens.
  expert_starts_.assign(static_cast<size_t>(config_.num_experts) + 1, 0);
  for (int i = 0; i < slots; i++) expert_starts_[static_cast<size_t>(slot_experts_[i]) + 1]++;
  std::partial_sum(expert_starts_.begin(), expert_starts_.end(), expert_starts_.begin());
  std::vector<int32_t> next(expert_starts_.begin(), expert_starts_.end() - 1);
  grow(sorted_slots_, static_cast<size_t>(slots));
  for (int i = 0; i < slots; i++) sorted_slots_[static_cast<size_t>(next[slot_experts_[i]]++)] = i;

  expert_act_.reserve(layer.experts.front().gate_up, config_.activation, slots, hidden);
  for_rows(slots, [&](int i) { expert_act_.copy_row(i, hidden_act_, sorted_slots_[i] / top); });
  grow(gathered_, static_cast<size_t>(slots) * 2 * inner);
  grow(slot_out_, static_cast<size_t>(slots) * hidden);
  std::vector<Product> up, down;
  for (int e = 0; e < config_.num_experts; e++) {
    const int begin = expert_starts_[e], count = expert_starts_[e + 1] - begin;
    if (count == 0) continue;
    const FeedForward& ffn = layer.experts[static_cast<size_t>(e)];
    up.push_back({&ffn.gate_up, &expert_act_, begin, count, {gathered_.data(), 2 * inner, nullptr, false, 1.0f}});
    down.push_back({&ffn.down, &inner_act_, begin, count, {slot_out_.data(), hidden, nullptr, false, 1.0f}});
  }
  multiply(up, config_.activation);
  inner_act_.reserve(layer.experts.front().down, config_.activation, slots, inner);
  for_rows(slots, [&](int i) {
    float* gate = gathered_.data() + static_cast<int64_t>(i) * 2 * inner;
    kernels().silu_mul(gate, gate, gate + inner, inner);
    inner_act_.set_row(i, gate);
  });
  multiply(down, config_.activation);

  // Each token adds its experts in ascending order, whatever the order in which they were computed.
  std::vector<int32_t> place(static_cast<size_t>(slots));
  for (int i = 0; i < slots; i++) place[static_cast<size_t>(sorted_slots_[i])] = i;
  for_rows(rows, [&](int i) {
    for (int k = 0; k < top; k++) {
      const size_t slot = static_cast<size_t>(i) * top + k;
      kernels().axpy(x_.data() + static_cast<int64_t>(i) * hidden, slot_weights_[slot] * config_.residual_multiplier,
                     slot_out_.data() + static_cast<int64_t>(place[slot]) * hidden, hidden);
    }
  });
  if (config_.shared_size > 0) {
    hidden_act_.reserve(layer.shared.gate_up, config_.activation, rows, hidden);
    for_rows(rows, [&](int i) { hidden_act_.set_row(i, normed_.data() + static_cast<int64_t>(i) * hidden); });
    dense(layer.shared, hidden_act_, rows, config_.residual_multiplier);
  }
}

}  // namespace trivium
