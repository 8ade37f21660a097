// One step of the engine: rows of several sequences through the decoder, into the KV cache and on to the next tokens.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "activations.h"
#include "attention_plan.h"
#include "kv_ahead.h"
#include "kv_cache.h"
#include "model.h"
#include "sampler.h"

namespace trivium {

// What a step computes; see Model.step in _native.pyi. Pointers are borrowed from the caller's arrays.
struct StepInput {
  int32_t num_rows = 0;
  int32_t num_sequences = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;  // [components, num_rows]
  int32_t position_components = 1;
  const int32_t* query_starts = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* block_tables = nullptr;
  int32_t block_table_width = 0;
  std::vector<Sampler*> samplers;
  const int32_t* num_drafts = nullptr;  // or nullptr: none
  const uint32_t* masks = nullptr;
  int32_t num_masks = 0;
  const int32_t* mask_rows = nullptr;

  struct PromptLogprobs {
    int32_t sequence;
    int32_t alternatives;
    std::vector<int32_t> next_tokens;
  };
  std::vector<PromptLogprobs> prompt_logprobs;

  const float* embeddings = nullptr;
  const int32_t* embedding_rows = nullptr;
  int32_t num_embeddings = 0;

  struct LayerAddition {
    int32_t layer;
    std::vector<int32_t> rows;
    const float* values;
  };
  std::vector<LayerAddition> layer_additions;

  float* all_logits = nullptr;  // [num_rows, vocab_size], when every row's logits are wanted

  int32_t drafts(int32_t s) const { return num_drafts == nullptr ? 0 : num_drafts[s]; }
};

struct StepOutput {
  std::vector<std::vector<int32_t>> tokens;             // per sequence
  std::vector<std::vector<TokenLogprob>> logprobs;      // per sequence, if its sampler reports them
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
};

// Runs steps of one model on one cache; owns the scratch memory.
class Stepper {
 public:
  Stepper(const Model& model, KvCache& cache) : model_(model), config_(model.config), cache_(cache) {}

  // Throws std::invalid_argument for inconsistent input, before anything is computed.
  StepOutput run(const StepInput& input);

 private:
  struct LogitsRow {
    int32_t row;       // of the step
    int32_t sequence;
    int32_t draft;     // the token the next row assumed, or -1
    const uint32_t* mask;
  };

  // The attention of layers with one window.
  struct Attention {
    AttentionPlan plan;
    KvRuns runs;  // listed when they are first wanted
  };

  void check(const StepInput& input) const;
  void find_faults(const StepInput& input, StepOutput* output) const;
  void embed(const StepInput& input);
  void prepare_rope(const StepInput& input);
  void attention_block(const StepInput& input, int layer);
  void write_kv(const StepInput& input, int layer);
  Attention& attention_of(const StepInput& input, int layer);
  void attend(const StepInput& input, int layer);
  void begin_fetching(const StepInput& input, int layer);
  KvShare beside(const Linear& linear, int rows);
  void feed_forward(int layer, int rows);
  void dense(const FeedForward& ffn, const Activations& in, int rows, float multiplier);
  void experts(int layer, int rows);
  void route(const Layer& layer, int rows);
  void add_layer_vectors(const StepInput& input, int layer);
  void norm_rows(const std::vector<float>& weight, const Linear& consumer, int rows, Activations* out);
  const float* compute_logits(const std::vector<int32_t>& rows);
  void sample(const StepInput& input, StepOutput* output);
  void sample_tile(const std::vector<LogitsRow>& tile, const StepInput& input, StepOutput* output);
  void score_prompts(const StepInput& input, StepOutput* output);

  const Model& model_;
  const ModelConfig& config_;
  KvCache& cache_;

  std::vector<float> x_;          // the residual stream [rows, hidden]
  std::vector<float> normed_, qkv_, attended_, inner_, gathered_, logits_;
  std::vector<float> cosines_, sines_;
  std::vector<int16_t> q_codes_;  // queries for keys of int8 [rows, num_heads, head_dim_padded]
  std::vector<float> q_scales_;   // [rows, num_heads]
  std::vector<int32_t> sequence_of_row_;
  std::map<int, Attention> attentions_;  // of this step, by the layers' windows
  KvAhead ahead_;
  Activations hidden_act_, attended_act_, inner_act_;

  // Mixture of experts: (token, slot) pairs sorted by expert.
  std::vector<float> router_logits_, slot_weights_, slot_out_;
  std::vector<int32_t> slot_experts_, sorted_slots_, expert_starts_;
  Activations router_act_, expert_act_;
};

}  // namespace trivium
