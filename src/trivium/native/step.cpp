#include "step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace trivium {

namespace {

constexpr int kLogitsTile = 64;  // rows whose logits are in memory at once

template <typename T>
void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

void Stepper::check(const StepInput& in) const {
  if (in.num_rows < 1 || in.num_sequences < 1) fail("a step needs rows and sequences");
  if (in.query_starts[0] != 0 || in.query_starts[in.num_sequences] != in.num_rows) fail("query_starts must go from 0 to the number of rows");
  if (in.samplers.size() != static_cast<size_t>(in.num_sequences)) fail("samplers must have one entry per sequence");
  for (int32_t i = 0; i < in.num_rows; i++) {
    if (in.token_ids[i] < 0 || in.token_ids[i] >= config_.vocab_size) fail("token id " + std::to_string(in.token_ids[i]) + " is outside the vocabulary");
  }
  for (int32_t s = 0; s < in.num_sequences; s++) {
    const std::string name = "sequence " + std::to_string(s) + ": ";
    const int32_t rows = in.query_starts[s + 1] - in.query_starts[s];
    if (rows < 1) fail(name + "no rows");
    if (in.context_lens[s] < rows) fail(name + "context is shorter than its rows");
    const int32_t blocks = (in.context_lens[s] + cache_.block_size() - 1) / cache_.block_size();
    if (blocks > in.block_table_width) fail(name + "block table is too short for its context");
    for (int32_t b = 0; b < blocks; b++) {
      const int32_t block = in.block_tables[static_cast<int64_t>(s) * in.block_table_width + b];
      if (block < 0 || block >= cache_.num_blocks()) fail(name + "no KV block " + std::to_string(block));
    }
    if (in.drafts(s) < 0 || in.drafts(s) >= rows || in.drafts(s) >= kLogitsTile) fail(name + "too many drafts");
    if (in.samplers[s] != nullptr && in.samplers[s]->vocab_size() != config_.vocab_size) fail(name + "its sampler has another vocabulary");
    if (in.mask_rows != nullptr && in.mask_rows[s] >= 0 && in.mask_rows[s] + in.drafts(s) >= in.num_masks) fail(name + "no such mask");
  }
  for (const auto& p : in.prompt_logprobs) {
    if (p.sequence < 0 || p.sequence >= in.num_sequences) fail("prompt_logprobs: no such sequence");
    const int32_t rows = in.query_starts[p.sequence + 1] - in.query_starts[p.sequence];
    if (p.next_tokens.size() != static_cast<size_t>(rows)) fail("prompt_logprobs: one next token per row expected");
    for (int32_t t : p.next_tokens) {
      if (t >= config_.vocab_size) fail("prompt_logprobs: token id outside the vocabulary");
    }
  }
  for (int32_t i = 0; i < in.num_embeddings; i++) {
    if (in.embedding_rows[i] < 0 || in.embedding_rows[i] >= in.num_rows) fail("embedding_rows: no such row");
  }
  for (const auto& a : in.layer_additions) {
    if (a.layer < 0 || a.layer >= config_.num_layers) fail("layer_additions: no such layer");
    for (int32_t row : a.rows) {
      if (row < 0 || row >= in.num_rows) fail("layer_additions: no such row");
    }
  }
}

StepOutput Stepper::run(const StepInput& in) {
  check(in);
  Pool& pool = Pool::instance();
  std::lock_guard<std::mutex> lock(pool.owner());
  pool.begin_step();
  embed(in);
  prepare_rope(in);
  attentions_.clear();
  ahead_.clear();
  sequence_of_row_.resize(static_cast<size_t>(in.num_rows));
  for (int32_t s = 0; s < in.num_sequences; s++) {
    for (int32_t i = in.query_starts[s]; i < in.query_starts[s + 1]; i++) sequence_of_row_[i] = s;
  }
  for (int layer = 0; layer < config_.num_layers; layer++) {
    attention_block(in, layer);
    feed_forward(layer, in.num_rows);
    add_layer_vectors(in, layer);
  }
  StepOutput out;
  out.tokens.resize(static_cast<size_t>(in.num_sequences));
  out.logprobs.resize(static_cast<size_t>(in.num_sequences));
  out.prompt_logprobs.resize(static_cast<size_t>(in.num_sequences));
  find_faults(in, &out);
  score_prompts(in, &out);
  sample(in, &out);
  if (in.all_logits != nullptr) {
    for (int32_t first = 0; first < in.num_rows; first += kLogitsTile) {
      std::vector<int32_t> rows;
      for (int32_t i = first; i < std::min(in.num_rows, first + kLogitsTile); i++) rows.push_back(i);
      const float* logits = compute_logits(rows);
      std::copy_n(logits, rows.size() * config_.vocab_size, in.all_logits + static_cast<int64_t>(first) * config_.vocab_size);
    }
  }
  pool.end_step();
  return out;
}

// A row that is not finite ends its sequence, also in the middle of a prompt: the cache holds finite values in its place, so later
// rows would not show it. Rows of drafts do not count here: a draft that is accepted shows in its logits, another does not matter.
void Stepper::find_faults(const StepInput& in, StepOutput* out) const {
  std::vector<char> faulty(static_cast<size_t>(in.num_rows), 0);  // a row has one thread, a sequence may have several
  for_rows(in.num_rows, [&](int i) {
    const int32_t s = sequence_of_row_[static_cast<size_t>(i)];
    if (i >= in.query_starts[s + 1] - in.drafts(s)) return;
    const float* x = x_.data() + static_cast<int64_t>(i) * config_.hidden_size;
    faulty[static_cast<size_t>(i)] = kernels().argmax(x, config_.hidden_size) < 0;
  });
  for (int32_t s = 0; s < in.num_sequences; s++) {
    const auto last = faulty.begin() + in.query_starts[s + 1];
    if (std::find(faulty.begin() + in.query_starts[s], last, 1) != last) out->tokens[static_cast<size_t>(s)].push_back(-1);
  }
}

void Stepper::embed(const StepInput& in) {
  const size_t hidden = static_cast<size_t>(config_.hidden_size);
  grow(x_, in.num_rows * hidden);
  const Matrix& matrix = model_.embedding_matrix();
  for_rows(in.num_rows, [&](int i) {
    float* x = x_.data() + i * hidden;
    matrix.read_row(in.token_ids[i], x);
    if (config_.embedding_multiplier != 1.0f) {
      for (size_t k = 0; k < hidden; k++) x[k] *= config_.embedding_multiplier;
    }
  });
  for (int32_t i = 0; i < in.num_embeddings; i++) {
    std::copy_n(in.embeddings + i * hidden, hidden, x_.data() + in.embedding_rows[i] * hidden);
  }
}

// cos and sin of every row's position, in float32 as transformers computes them.
void Stepper::prepare_rope(const StepInput& in) {
  const size_t half = config_.inv_freq.size();
  grow(cosines_, in.num_rows * half);
  grow(sines_, in.num_rows * half);
  std::vector<int32_t> component(half, 0);
  if (in.position_components == 3 && !config_.sections.empty()) {
    size_t i = 0;
    for (int32_t c = 0; c < 3; c++) {
      for (int32_t k = 0; k < config_.sections[c]; k++) component[i++] = c;
    }
  }
  for_rows(in.num_rows, [&](int row) {
    for (size_t i = 0; i < half; i++) {
      const float position = static_cast<float>(in.positions[static_cast<int64_t>(component[i]) * in.num_rows + row]);
      const float angle = position * config_.inv_freq[i];
      cosines_[row * half + i] = std::cos(angle) * config_.attention_factor;
      sines_[row * half + i] = std::sin(angle) * config_.attention_factor;
    }
  });
}

void Stepper::norm_rows(const std::vector<float>& weight, const Linear& consumer, int rows, Activations* out) {
  const int hidden = config_.hidden_size;
  out->reserve(consumer, config_.activation, rows, hidden);
  grow(normed_, static_cast<size_t>(rows) * hidden);
  for_rows(rows, [&](int i) {
    float* normed = normed_.data() + static_cast<int64_t>(i) * hidden;
    kernels().rms_norm(normed, x_.data() + static_cast<int64_t>(i) * hidden, weight.data(), hidden, config_.norm_eps);
    out->set_row(i, normed);
  });
}

void Stepper::attention_block(const StepInput& in, int index) {
  const Layer& layer = model_.layers[static_cast<size_t>(index)];
  const int rows = in.num_rows, width = config_.q_size() + 2 * config_.kv_size(), q_size = config_.q_size();
  norm_rows(layer.attention_norm, layer.qkv, rows, &hidden_act_);
  grow(qkv_, static_cast<size_t>(rows) * width);
  multiply(layer.qkv, hidden_act_, rows, {qkv_.data(), width, nullptr, false, 1.0f}, config_.activation, beside(layer.qkv, rows));
  write_kv(in, index);
  grow(attended_, static_cast<size_t>(rows) * q_size);
  attend(in, index);
  begin_fetching(in, index + 1);
  attended_act_.reserve(layer.attention_output, config_.activation, rows, q_size);
  for_rows(rows, [&](int i) { attended_act_.set_row(i, attended_.data() + static_cast<int64_t>(i) * q_size); });
  multiply(layer.attention_output, attended_act_, rows, {x_.data(), config_.hidden_size, nullptr, true, config_.residual_multiplier},
           config_.activation, beside(layer.attention_output, rows));
}

// Norms and rotates queries and keys, and keeps keys and values in the cache. Keys of integers want queries of integers.
void Stepper::write_kv(const StepInput& in, int index) {
  const Layer& layer = model_.layers[static_cast<size_t>(index)];
  const int width = config_.q_size() + 2 * config_.kv_size(), head_dim = config_.head_dim;
  const int rotary = 2 * static_cast<int>(config_.inv_freq.size());
  const int padded = config_.head_dim_padded();
  const bool codes = has_codes(cache_.type());
  if (codes) {
    grow(q_codes_, static_cast<size_t>(in.num_rows) * config_.num_heads * padded);
    grow(q_scales_, static_cast<size_t>(in.num_rows) * config_.num_heads);
  }
  const Kernels& k = kernels();
  const float query_scale = config_.attention_scale * 1.44269504f;  // log2(e): the softmax is taken to base 2
  const auto quantize_query = cache_.type() == KvType::kInt8 ? k.quantize_query_i8 : k.quantize_query_i16;
  for_rows(in.num_rows, [&](int i) {
    float* q = qkv_.data() + static_cast<int64_t>(i) * width;
    float* key = q + config_.q_size();
    const float* value = key + config_.kv_size();
    const float* cosines = cosines_.data() + static_cast<int64_t>(i) * (rotary / 2);
    const float* sines = sines_.data() + static_cast<int64_t>(i) * (rotary / 2);
    const int s = sequence_of_row_[static_cast<size_t>(i)];
    const int position = in.context_lens[s] - (in.query_starts[s + 1] - i);  // in the cache
    const int block = in.block_tables[static_cast<int64_t>(s) * in.block_table_width + position / cache_.block_size()];
    for (int h = 0; h < config_.num_heads; h++) {
      float* head = q + h * head_dim;
      if (config_.qk_norm) k.rms_norm(head, head, layer.q_norm.data(), head_dim, config_.norm_eps);
      k.rope(head, cosines, sines, rotary, head_dim, config_.rope_interleaved, query_scale);
      const int64_t at = static_cast<int64_t>(i) * config_.num_heads + h;
      if (codes) q_scales_[at] = quantize_query(q_codes_.data() + at * padded, head, head_dim);
    }
    for (int h = 0; h < config_.num_kv_heads; h++) {
      float* head = key + h * head_dim;
      if (config_.qk_norm) k.rms_norm(head, head, layer.k_norm.data(), head_dim, config_.norm_eps);
      k.rope(head, cosines, sines, rotary, head_dim, config_.rope_interleaved, 1.0f);
      cache_.write(index, block, position % cache_.block_size(), h, head, value + h * head_dim);
    }
  });
}

void Stepper::feed_forward(int index, int rows) {
  const Layer& layer = model_.layers[static_cast<size_t>(index)];
  if (config_.moe_layers[static_cast<size_t>(index)]) {
    experts(index, rows);
    return;
  }
  norm_rows(layer.ffn_norm, layer.dense.gate_up, rows, &hidden_act_);
  dense(layer.dense, hidden_act_, rows, config_.residual_multiplier);
}

// x += multiplier * down(silu(gate) * up)
void Stepper::dense(const FeedForward& ffn, const Activations& in, int rows, float multiplier) {
  const int inner = ffn.gate_up.rows() / 2;
  grow(inner_, static_cast<size_t>(rows) * 2 * inner);
  multiply(ffn.gate_up, in, rows, {inner_.data(), 2 * inner, nullptr, false, 1.0f}, config_.activation, beside(ffn.gate_up, rows));
  inner_act_.reserve(ffn.down, config_.activation, rows, inner);
  for_rows(rows, [&](int i) {
    float* gate = inner_.data() + static_cast<int64_t>(i) * 2 * inner;
    kernels().silu_mul(gate, gate, gate + inner, inner);
    inner_act_.set_row(i, gate);
  });
  multiply(ffn.down, inner_act_, rows, {x_.data(), config_.hidden_size, nullptr, true, multiplier}, config_.activation,
           beside(ffn.down, rows));
}

void Stepper::add_layer_vectors(const StepInput& in, int layer) {
  const int hidden = config_.hidden_size;
  for (const auto& addition : in.layer_additions) {
    if (addition.layer != layer) continue;
    for (size_t i = 0; i < addition.rows.size(); i++) {
      kernels().axpy(x_.data() + static_cast<int64_t>(addition.rows[i]) * hidden, 1.0f, addition.values + i * hidden, hidden);
    }
  }
}

const float* Stepper::compute_logits(const std::vector<int32_t>& rows) {
  const int hidden = config_.hidden_size, count = static_cast<int>(rows.size());
  const int64_t vocab = config_.vocab_size;
  hidden_act_.reserve(model_.output, config_.activation, count, hidden);
  grow(normed_, static_cast<size_t>(count) * hidden);
  for_rows(count, [&](int i) {
    float* normed = normed_.data() + static_cast<int64_t>(i) * hidden;
    kernels().rms_norm(normed, x_.data() + static_cast<int64_t>(rows[i]) * hidden, model_.final_norm.data(), hidden, config_.norm_eps);
    hidden_act_.set_row(i, normed);
  });
  grow(logits_, static_cast<size_t>(count) * vocab);
  multiply(model_.output, hidden_act_, count, {logits_.data(), vocab, nullptr, false, 1.0f}, config_.activation);
  if (config_.logit_scale != 1.0f) {
    for_rows(count, [&](int i) {
      for (int64_t t = 0; t < vocab; t++) logits_[i * vocab + t] *= config_.logit_scale;
    });
  }
  return logits_.data();
}

void Stepper::score_prompts(const StepInput& in, StepOutput* out) {
  const int64_t vocab = config_.vocab_size;
  for (const auto& p : in.prompt_logprobs) {
    std::vector<int32_t> rows, tokens;
    for (size_t i = 0; i < p.next_tokens.size(); i++) {
      if (p.next_tokens[i] < 0) continue;
      rows.push_back(in.query_starts[p.sequence] + static_cast<int32_t>(i));
      tokens.push_back(p.next_tokens[i]);
    }
    auto& reports = out->prompt_logprobs[static_cast<size_t>(p.sequence)];
    reports.resize(rows.size());
    for (size_t first = 0; first < rows.size(); first += kLogitsTile) {
      const size_t end = std::min(rows.size(), first + kLogitsTile);
      const float* logits = compute_logits({rows.begin() + static_cast<int64_t>(first), rows.begin() + static_cast<int64_t>(end)});
      Pool::instance().run(static_cast<int>(end - first), [&](int i) {
        thread_local std::vector<float> scratch;
        grow(scratch, static_cast<size_t>(vocab));
        const size_t at = first + static_cast<size_t>(i);
        token_logprob(logits + i * vocab, config_.vocab_size, tokens[at], p.alternatives, scratch.data(), &reports[at]);
      });
    }
  }
}

// Logits rows of whole sequences, as many as fit a tile at a time.
void Stepper::sample(const StepInput& in, StepOutput* out) {
  const int64_t mask_words = (config_.vocab_size + 31) / 32;
  std::vector<LogitsRow> tile;
  for (int32_t s = 0; s < in.num_sequences; s++) {
    if (in.samplers[static_cast<size_t>(s)] == nullptr || !out->tokens[static_cast<size_t>(s)].empty()) continue;
    const int32_t drafts = in.drafts(s), last = in.query_starts[s + 1] - 1;
    if (!tile.empty() && tile.size() + 1 + static_cast<size_t>(drafts) > kLogitsTile) {
      sample_tile(tile, in, out);
      tile.clear();
    }
    for (int32_t i = 0; i <= drafts; i++) {
      const int32_t row = last - drafts + i;
      const bool masked = in.mask_rows != nullptr && in.mask_rows[s] >= 0;
      tile.push_back({row, s, i < drafts ? in.token_ids[row + 1] : -1, masked ? in.masks + (in.mask_rows[s] + i) * mask_words : nullptr});
    }
  }
  if (!tile.empty()) sample_tile(tile, in, out);
}

void Stepper::sample_tile(const std::vector<LogitsRow>& tile, const StepInput& in, StepOutput* out) {
  std::vector<int32_t> rows;
  std::vector<size_t> starts;  // of each sequence in the tile
  for (size_t i = 0; i < tile.size(); i++) {
    rows.push_back(tile[i].row);
    if (i == 0 || tile[i].sequence != tile[i - 1].sequence) starts.push_back(i);
  }
  compute_logits(rows);
  Pool::instance().run(static_cast<int>(starts.size()), [&](int n) {
    thread_local std::vector<float> scratch;
    grow(scratch, static_cast<size_t>(config_.vocab_size));
    const size_t start = starts[static_cast<size_t>(n)];
    const size_t s = static_cast<size_t>(tile[start].sequence);
    Sampler& sampler = *in.samplers[s];
    for (size_t i = start; i < tile.size() && tile[i].sequence == tile[start].sequence; i++) {
      TokenLogprob report;
      float* logits = logits_.data() + static_cast<int64_t>(i) * config_.vocab_size;
      const int32_t token = sampler.sample(logits, tile[i].mask, scratch.data(), sampler.wants_logprobs() ? &report : nullptr);
      out->tokens[s].push_back(token);
      if (sampler.wants_logprobs()) out->logprobs[s].push_back(std::move(report));
      if (token < 0 || token != tile[i].draft) break;
    }
  });
}

}  // namespace trivium
