#include "model.h"

#include <cmath>
#include <stdexcept>

namespace trivium {

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

void require(bool condition, const char* name) {
  if (!condition) fail(std::string("model specification: ") + name + " is out of range");
}

// "layers.12.rest" -> 12 and "rest"; -1 if it is not of that form.
int layer_index(const std::string& name, const char* prefix, std::string* rest) {
  const std::string start = std::string(prefix) + ".";
  if (name.rfind(start, 0) != 0) return -1;
  size_t end = start.size();
  int index = 0;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9' && index < 100000) index = index * 10 + (name[end++] - '0');
  if (end == start.size() || end >= name.size() || name[end] != '.') return -1;
  *rest = name.substr(end + 1);
  return index;
}

Linear* find_feed_forward(FeedForward& ffn, const std::string& name) {
  if (name == "gate_up") return &ffn.gate_up;
  if (name == "down") return &ffn.down;
  return nullptr;
}

void check_linear(const Linear& linear, const std::string& name, int32_t rows, int32_t cols) {
  if (linear.parts.empty()) fail("weight " + name + " is missing");
  for (const auto& part : linear.parts) {
    if (part->cols() != cols) fail("weight " + name + " has " + std::to_string(part->cols()) + " columns, expected " + std::to_string(cols));
  }
  if (linear.rows() != rows) fail("weight " + name + " has " + std::to_string(linear.rows()) + " rows, expected " + std::to_string(rows));
  if (!linear.bias.empty() && linear.bias.size() != static_cast<size_t>(rows)) {
    fail("bias of " + name + " has " + std::to_string(linear.bias.size()) + " values, expected " + std::to_string(rows));
  }
}

void check_vector(const std::vector<float>& values, const std::string& name, int32_t size) {
  if (values.size() != static_cast<size_t>(size)) {
    fail("weight " + name + " has " + std::to_string(values.size()) + " values, expected " + std::to_string(size));
  }
}

void check_feed_forward(const FeedForward& ffn, const std::string& name, int32_t hidden, int32_t inner) {
  check_linear(ffn.gate_up, name + "gate_up", 2 * inner, hidden);
  check_linear(ffn.down, name + "down", hidden, inner);
}

size_t linear_bytes(const Linear& linear) {
  size_t total = linear.bias.size() * sizeof(float);
  for (const auto& part : linear.parts) total += part->nbytes();
  return total;
}

}  // namespace

int32_t Linear::rows() const {
  int32_t total = 0;
  for (const auto& part : parts) total += part->rows();
  return total;
}

void ModelConfig::check() const {
  constexpr int32_t kMax = 1 << 24;
  require(vocab_size > 0 && vocab_size < kMax, "vocab_size");
  require(hidden_size > 0 && hidden_size < kMax, "hidden_size");
  require(num_layers > 0 && num_layers < 10000, "num_layers");
  require(num_heads > 0 && num_heads < 10000, "num_heads");
  require(num_kv_heads > 0 && num_heads % num_kv_heads == 0, "num_kv_heads");
  require(head_dim > 0 && head_dim <= kMaxHeadDim, "head_dim");
  require(intermediate_size >= 0 && intermediate_size < kMax, "intermediate_size");
  require(norm_eps >= 0.0f && norm_eps < 1.0f, "norm_eps");
  require(std::isfinite(attention_scale), "attention_scale");
  require(!inv_freq.empty() && 2 * inv_freq.size() <= static_cast<size_t>(head_dim), "inv_freq");
  require(std::isfinite(attention_factor), "attention_factor");
  require(windows.size() == static_cast<size_t>(num_layers), "windows");
  require(moe_layers.size() == static_cast<size_t>(num_layers), "moe_layers");
  int32_t covered = 0;
  for (int32_t s : sections) {
    require(s >= 0 && s <= head_dim, "sections");
    covered += s;
  }
  require(sections.empty() || (sections.size() == 3 && static_cast<size_t>(covered) == inv_freq.size()), "sections");
  for (int32_t w : windows) require(w >= 0, "windows");
  bool any_moe = false;
  for (bool moe : moe_layers) any_moe = any_moe || moe;
  if (any_moe) {
    require(num_experts > 0 && num_experts < 100000, "num_experts");
    require(experts_per_token > 0 && experts_per_token <= num_experts, "experts_per_token");
    require(expert_size > 0 && expert_size < kMax, "expert_size");
    require(shared_size >= 0 && shared_size < kMax, "shared_size");
    require(std::isfinite(norm_min) && std::isfinite(expert_scale), "expert_scale");
  }
}

Model::Model(ModelConfig c) : config(std::move(c)) {
  config.check();
  layers.resize(static_cast<size_t>(config.num_layers));
  for (size_t i = 0; i < layers.size(); i++) {
    if (config.moe_layers[i]) layers[i].experts.resize(static_cast<size_t>(config.num_experts));
  }
}

Linear* Model::find_linear(const std::string& name) {
  if (name == "embedding") return &embedding;
  if (name == "output") return &output;
  std::string rest, inner;
  const int index = layer_index(name, "layers", &rest);
  if (index < 0 || index >= config.num_layers) return nullptr;
  Layer& layer = layers[static_cast<size_t>(index)];
  if (rest == "qkv") return &layer.qkv;
  if (rest == "attention_output") return &layer.attention_output;
  if (rest == "router") return &layer.router;
  if (rest.rfind("shared.", 0) == 0) return find_feed_forward(layer.shared, rest.substr(7));
  const int expert = layer_index(rest, "experts", &inner);
  if (expert >= 0 && static_cast<size_t>(expert) < layer.experts.size()) {
    return find_feed_forward(layer.experts[static_cast<size_t>(expert)], inner);
  }
  return find_feed_forward(layer.dense, rest);
}

std::vector<float>* Model::find_vector(const std::string& name) {
  if (name == "final_norm") return &final_norm;
  std::string rest;
  const int index = layer_index(name, "layers", &rest);
  if (index < 0 || index >= config.num_layers) return nullptr;
  Layer& layer = layers[static_cast<size_t>(index)];
  if (rest == "attention_norm") return &layer.attention_norm;
  if (rest == "ffn_norm") return &layer.ffn_norm;
  if (rest == "q_norm") return &layer.q_norm;
  if (rest == "k_norm") return &layer.k_norm;
  if (rest == "router_bias") return &layer.router_bias;
  constexpr const char* kBias = "_bias";
  if (rest.size() > 5 && rest.compare(rest.size() - 5, 5, kBias) == 0) {
    Linear* linear = find_linear(name.substr(0, name.size() - 5));
    return linear == nullptr ? nullptr : &linear->bias;
  }
  return nullptr;
}

void Model::set_matrix(const std::string& name, std::shared_ptr<Matrix> matrix) {
  Linear* linear = find_linear(name);
  if (linear == nullptr) fail("unknown matrix " + name);
  linear->parts.push_back(std::move(matrix));
}

void Model::set_vector(const std::string& name, std::vector<float> values) {
  std::vector<float>* place = find_vector(name);
  if (place == nullptr) fail("unknown vector " + name);
  *place = std::move(values);
}

void Model::finish() const {
  const int32_t hidden = config.hidden_size;
  if (!config.tied_output) check_linear(embedding, "embedding", config.vocab_size, hidden);
  check_linear(output, "output", config.vocab_size, hidden);
  if (embedding.parts.size() > 1 || output.parts.size() > 1) fail("embedding and output are one matrix each");
  check_vector(final_norm, "final_norm", hidden);
  for (size_t i = 0; i < layers.size(); i++) {
    const Layer& layer = layers[i];
    const std::string prefix = "layers." + std::to_string(i) + ".";
    check_vector(layer.attention_norm, prefix + "attention_norm", hidden);
    check_vector(layer.ffn_norm, prefix + "ffn_norm", hidden);
    if (config.qk_norm) check_vector(layer.q_norm, prefix + "q_norm", config.head_dim);
    if (config.qk_norm) check_vector(layer.k_norm, prefix + "k_norm", config.head_dim);
    check_linear(layer.qkv, prefix + "qkv", config.q_size() + 2 * config.kv_size(), hidden);
    check_linear(layer.attention_output, prefix + "attention_output", hidden, config.q_size());
    if (!config.moe_layers[i]) {
      check_feed_forward(layer.dense, prefix, hidden, config.intermediate_size);
      continue;
    }
    check_linear(layer.router, prefix + "router", config.num_experts, hidden);
    if (!layer.router_bias.empty()) check_vector(layer.router_bias, prefix + "router_bias", config.num_experts);
    for (size_t e = 0; e < layer.experts.size(); e++) {
      check_feed_forward(layer.experts[e], prefix + "experts." + std::to_string(e) + ".", hidden, config.expert_size);
    }
    if (config.shared_size > 0) check_feed_forward(layer.shared, prefix + "shared.", hidden, config.shared_size);
  }
}

size_t Model::weight_bytes() const {
  size_t total = linear_bytes(embedding) + linear_bytes(output) + final_norm.size() * sizeof(float);
  for (const Layer& layer : layers) {
    for (const auto* v : {&layer.attention_norm, &layer.ffn_norm, &layer.q_norm, &layer.k_norm, &layer.router_bias}) {
      total += v->size() * sizeof(float);
    }
    for (const auto* l : {&layer.qkv, &layer.attention_output, &layer.router}) total += linear_bytes(*l);
    for (const auto* f : {&layer.dense, &layer.shared}) total += linear_bytes(f->gate_up) + linear_bytes(f->down);
    for (const auto& f : layer.experts) total += linear_bytes(f.gate_up) + linear_bytes(f.down);
  }
  return total;
}

}  // namespace trivium
