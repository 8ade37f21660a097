// The weights of one decoder, as data: what `DecoderSpec` (models/spec.py) describes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "matrix.h"

namespace trivium {

struct ModelConfig {
  int32_t vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_dim, intermediate_size;
  float norm_eps, attention_scale;
  std::vector<float> inv_freq;
  bool rope_interleaved;
  float attention_factor;
  std::vector<int32_t> sections;  // frequencies per position component, or empty
  std::vector<int32_t> windows;   // per layer; 0: none
  std::vector<bool> moe_layers;
  int32_t num_experts, experts_per_token, expert_size, shared_size;
  bool sigmoid_scoring, normalize;
  float norm_min, expert_scale;
  bool qk_norm;
  float embedding_multiplier, residual_multiplier, logit_scale;
  bool tied_output;
  ActivationMode activation;

  // Throws std::invalid_argument naming the first member that is out of range.
  void check() const;

  int32_t head_dim_padded() const { return (head_dim + 15) / 16 * 16; }
  int32_t q_size() const { return num_heads * head_dim; }
  int32_t kv_size() const { return num_kv_heads * head_dim; }
};

// y = W x + b, where W may consist of matrices of several families stacked by rows.
struct Linear {
  std::vector<std::shared_ptr<Matrix>> parts;
  std::vector<float> bias;

  int32_t rows() const;
  int32_t cols() const { return parts.empty() ? 0 : parts.front()->cols(); }
};

struct FeedForward {
  Linear gate_up, down;
};

struct Layer {
  std::vector<float> attention_norm, ffn_norm, q_norm, k_norm, router_bias;
  Linear qkv, attention_output;
  FeedForward dense;  // without experts
  Linear router;
  std::vector<FeedForward> experts;
  FeedForward shared;
};

struct Model {
  explicit Model(ModelConfig c);

  // Names as models/loader.py gives them; throws std::invalid_argument for an unknown one.
  void set_matrix(const std::string& name, std::shared_ptr<Matrix> matrix);
  void set_vector(const std::string& name, std::vector<float> values);

  // Checks that every weight is there with its shape; throws std::invalid_argument naming the first that is not.
  void finish() const;

  size_t weight_bytes() const;
  const Matrix& embedding_matrix() const { return *(config.tied_output ? output : embedding).parts.front(); }

  ModelConfig config;
  std::vector<Layer> layers;
  Linear embedding, output;
  std::vector<float> final_norm;

 private:
  Linear* find_linear(const std::string& name);
  std::vector<float>* find_vector(const std::string& name);
};

}  // namespace trivium
