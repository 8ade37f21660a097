// From logits to the next token of one sequence, and the log-probabilities to report with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace trivium {

// What a reported value is: the logits as the model gave them, or as they were when the token was drawn (after the whole
// pipeline, temperature and truncations included, cut tokens at -inf), each as such or as log-softmax. A greedy choice
// applies neither temperature nor truncation. Truncation also cuts tokens with p < 1e-30 * max p.
enum class LogprobsMode { kRawLogprobs, kProcessedLogprobs, kRawLogits, kProcessedLogits };

struct SamplerParams {
  int32_t vocab_size = 0;
  uint64_t seed = 0;
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  int64_t top_k = 0;           // 0 and -1: off
  int64_t penalty_window = 0;  // 0: the whole history
  int64_t min_tokens = 0;
  std::vector<int32_t> suppressed;  // forbidden until min_tokens were generated
  std::vector<std::vector<int32_t>> bad_words;
  std::vector<std::pair<int32_t, float>> bias;
  int64_t logprobs = -2;  // alternatives to report; -1: all; -2: report nothing
  LogprobsMode mode = LogprobsMode::kRawLogprobs;
};

// One row of reported values. Better means a greater logit or, between equal ones, a lower id: `rank` is 1 for the best
// token, and the alternatives come best first.
struct TokenLogprob {
  float logprob = 0.0f;
  int32_t rank = 0;
  std::vector<int32_t> ids;
  std::vector<float> values;
};

// Prompt and output of a sequence, with how often each token occurs in what the penalties look at. Counts are kept up to
// date token by token, so that a step costs the number of distinct tokens in the history and not the size of the vocabulary.
class TokenHistory {
 public:
  struct Count {
    int32_t token;
    int32_t seen;       // in the last `window` tokens of prompt and output
    int32_t generated;  // in the last `window` tokens of the output
  };

  // `window` 0: everything. Without `counting`, counts() stays empty.
  TokenHistory(const int32_t* prompt, size_t prompt_length, size_t window, bool counting);

  void push(int32_t token);
  void pop();
  size_t num_output() const { return tokens_.size() - prompt_length_; }
  const int32_t* output_end() const { return tokens_.data() + tokens_.size(); }
  const std::vector<Count>& counts() const { return counts_; }  // by ascending token id

 private:
  void count_newest(int32_t sign);
  void change(int32_t token, int32_t seen, int32_t generated);

  std::vector<int32_t> tokens_;
  size_t prompt_length_;
  size_t window_;
  bool counting_;
  std::vector<Count> counts_;
};

struct Candidates;  // see sampler.cpp

// The pipeline, in order: bias is added; suppressed tokens are forbidden while fewer than min_tokens were generated;
// repetition penalty a (z < 0 ? z * a : z / a, tokens of prompt and output); frequency penalty b * count and presence penalty
// g (both over the output) are subtracted; bad words; the caller's mask. Then temperature < 1e-5, top_p < 1e-5 or top_k = 1
// take the best token (greatest logit, lowest id), and anything else draws: logits / temperature, softmax, min_p (keep
// p >= min_p * max p), top_k (keep the k best), top_p (of the probabilities renormalised over what is left, keep the fewest
// best ones whose sum reaches top_p), and one uniform number, inverted over the kept tokens in ascending order of their ids.
//
// A bad word of k tokens forbids its last one when the output so far ends with the other k - 1; the prompt does not count.
//
// The uniform number is a function of the seed and of how many tokens were generated before (random.h), so what is drawn
// depends on the logits, the history and the seed alone.
class Sampler {
 public:
  // Throws std::invalid_argument for parameters out of range, NaN, or token ids outside the vocabulary.
  Sampler(SamplerParams params, const int32_t* prompt, size_t prompt_length);

  // Chooses a token and appends it to the history. logits: vocab_size floats, overwritten. mask: a bit per token, 1 for
  // allowed, or nullptr. scratch: vocab_size floats. report is filled if wants_logprobs() and it is not nullptr.
  // Returns -1, the history unchanged, if a logit is NaN or +inf or nothing is allowed.
  int32_t sample(float* logits, const uint32_t* mask, float* scratch, TokenLogprob* report);

  bool wants_logprobs() const { return params_.logprobs > -2; }
  int32_t vocab_size() const { return params_.vocab_size; }
  size_t num_output() const { return history_.num_output(); }

  // Appends a token to the output without sampling.
  void push(int32_t token);
  // Forgets all but the first num_output output tokens, and a forced token that was to follow the forgotten ones.
  void truncate(size_t num_output);
  // The next sample() returns this token whatever the logits and the mask say, unless the logits are not finite.
  void force(int32_t token);

 private:
  bool penalizes() const;
  bool suppresses() const;
  bool rewrites(const uint32_t* mask) const;
  bool truncates() const;
  bool reports_raw() const;
  void rewrite(float* logits, const uint32_t* mask) const;
  void apply_penalties(float* logits) const;
  void forbid_bad_words(float* logits) const;
  int32_t draw(float* logits, int32_t best, float* scratch, bool cut_logits) const;
  Candidates& keep_likely(const float* weights, double total, int32_t best) const;

  SamplerParams params_;
  bool greedy_;
  float scale_;  // 1 / temperature
  TokenHistory history_;
  std::optional<int32_t> forced_;
};

// The log-softmax of raw logits at one given token and at the `alternatives` best ones (-1: all). scratch: vocab_size floats.
// Logits that hold NaN or +inf give a NaN, rank 0 and no alternatives. Throws std::invalid_argument for a token outside the
// vocabulary.
void token_logprob(const float* logits, int32_t vocab_size, int32_t token, int64_t alternatives, float* scratch,
                   TokenLogprob* report);

}  // namespace trivium
