#include "sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"
#include "random.h"

namespace trivium {

// Indices, ascending, and their values. The arrays only grow, so that a step allocates nothing.
struct Candidates {
  std::vector<float> values;
  std::vector<int32_t> ids;
  int64_t size = 0;
};

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr double kGreedyBelow = 1e-5;
constexpr float kNegligible = 1e-30f;  // a weight that truncation takes for 0, so that underflow in exp cannot decide anything
// Penalties, bias and temperature are held within these bounds, which no sensible value reaches: what the pipeline computes
// from finite logits then stays finite or becomes -inf.
constexpr double kLargest = 1e18;
constexpr double kSmallest = 1e-18;

// Buffers of a thread, shared by all samplers that run on it.
struct Workspace {
  std::vector<float> raw;
  std::vector<float> maxima;
  Candidates candidates;
};

Workspace& workspace() {
  thread_local Workspace buffers;
  return buffers;
}

// ---- validation

[[noreturn]] void refuse(const char* field, const char* allowed, const std::string& value) {
  throw std::invalid_argument(std::string(field) + " must be " + allowed + ", got " + value);
}

// Written so that NaN fails.
void require(bool holds, const char* field, const char* allowed, double value) {
  if (!holds) refuse(field, allowed, std::to_string(value));
}

void require(bool holds, const char* field, const char* allowed, int64_t value) {
  if (!holds) refuse(field, allowed, std::to_string(value));
}

void require_token(int32_t token, int32_t vocab_size, const char* field) {
  if (token >= 0 && token < vocab_size) return;
  refuse(field, ("token ids from 0 to " + std::to_string(vocab_size - 1)).c_str(), std::to_string(token));
}

void check_tokens(const SamplerParams& p, const int32_t* prompt, size_t prompt_length) {
  for (size_t i = 0; i < prompt_length; ++i) require_token(prompt[i], p.vocab_size, "prompt");
  for (const int32_t token : p.suppressed) require_token(token, p.vocab_size, "suppressed");
  for (const auto& word : p.bad_words) {
    if (word.empty()) refuse("bad_words", "non-empty lists of token ids", "[]");
    for (const int32_t token : word) require_token(token, p.vocab_size, "bad_words");
  }
  for (const auto& [token, value] : p.bias) {
    require_token(token, p.vocab_size, "bias_ids");
    require(value < std::numeric_limits<float>::infinity(), "bias_values", "below infinity", double{value});
  }
}

SamplerParams checked(SamplerParams p, const int32_t* prompt, size_t prompt_length) {
  require(p.vocab_size >= 1, "vocab_size", ">= 1", int64_t{p.vocab_size});
  require(p.temperature >= 0, "temperature", ">= 0", p.temperature);
  require(p.top_p >= 0 && p.top_p <= 1, "top_p", "from 0 to 1", p.top_p);
  require(p.min_p >= 0 && p.min_p <= 1, "min_p", "from 0 to 1", p.min_p);
  require(p.repetition_penalty > 0, "repetition_penalty", "> 0", p.repetition_penalty);
  require(!std::isnan(p.presence_penalty), "presence_penalty", "a number", p.presence_penalty);
  require(!std::isnan(p.frequency_penalty), "frequency_penalty", "a number", p.frequency_penalty);
  require(p.top_k >= -1, "top_k", ">= -1", p.top_k);
  require(p.penalty_window >= 0, "penalty_window", ">= 0", p.penalty_window);
  require(p.min_tokens >= 0, "min_tokens", ">= 0", p.min_tokens);
  require(p.logprobs >= -2, "logprobs", ">= -2", p.logprobs);
  check_tokens(p, prompt, prompt_length);
  p.temperature = std::min(p.temperature, kLargest);
  p.repetition_penalty = std::clamp(p.repetition_penalty, kSmallest, kLargest);
  p.presence_penalty = std::clamp(p.presence_penalty, -kLargest, kLargest);
  p.frequency_penalty = std::clamp(p.frequency_penalty, -kLargest, kLargest);
  for (auto& [token, value] : p.bias) value = std::min(value, static_cast<float>(kLargest));
  return p;
}

// ---- passes over the vocabulary

// The best token, or -1 if a logit is NaN or +inf.
int32_t finite_argmax(const float* logits, int32_t n) {
  const int64_t best = kernels().argmax(logits, n);
  if (best < 0 || logits[best] == std::numeric_limits<float>::infinity()) return -1;
  return static_cast<int32_t>(best);
}

void apply_mask(float* logits, int32_t n, const uint32_t* mask) {
  for (int32_t start = 0; start < n; start += 32) {
    const uint32_t allowed = mask[start / 32];
    if (allowed == 0xffffffffu) continue;
    const int32_t end = std::min(start + 32, n);
    for (int32_t i = start; i < end; ++i) {
      if ((allowed >> (i - start) & 1u) == 0) logits[i] = kForbidden;
    }
  }
}

double sum(const float* x, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lanes[j] += x[i + j];
  }
  for (; i < n; ++i) lanes[0] += x[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// The first index whose cumulative weight exceeds u * total.
int64_t invert(const float* weights, int64_t n, double total, double u) {
  constexpr int64_t kStretch = 64;
  const double target = u * total;
  double before = 0.0;
  for (int64_t start = 0; start < n; start += kStretch) {
    const int64_t end = std::min(start + kStretch, n);
    const double through = before + sum(weights + start, end - start);
    if (through <= target) {
      before = through;
      continue;
    }
    for (int64_t i = start; i < end; ++i) {
      before += weights[i];
      if (before > target) return i;
    }
  }
  // `total` was summed in another order and may exceed this sum by its rounding: then u stands for the last token with weight.
  int64_t last = n - 1;
  while (last > 0 && weights[last] == 0.0f) --last;
  return last;
}

// A value that at least k of the n values reach, close to the k-th largest: the k-th largest of the maxima of 2k disjoint
// groups. -inf when k is too large a share for that to pay.
float reached_by(const float* values, int64_t n, int64_t k, std::vector<float>& maxima) {
  if (k > n / 8) return kForbidden;
  const int64_t groups = std::min(std::max<int64_t>(2 * k, 256), n);
  maxima.assign(values, values + groups);
  for (int64_t start = groups; start < n; start += groups) {
    const int64_t count = std::min(groups, n - start);
    const float* row = values + start;
    for (int64_t j = 0; j < count; ++j) maxima[j] = row[j] > maxima[j] ? row[j] : maxima[j];
  }
  std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
  return maxima[k - 1];
}

constexpr int64_t kProbe = 16;

bool any_reaches(const float* values, float floor) {
  int any = 0;
  for (int64_t i = 0; i < kProbe; ++i) any |= values[i] >= floor;
  return any != 0;
}

// The values that reach `floor`. Few do as a rule, so whole stretches are skipped.
void gather(const float* values, int64_t n, float floor, Candidates& out) {
  if (static_cast<int64_t>(out.ids.size()) < n) {
    out.values.resize(n);
    out.ids.resize(n);
  }
  int64_t size = 0;
  for (int64_t start = 0; start < n; start += kProbe) {
    const int64_t end = std::min(start + kProbe, n);
    if (end - start == kProbe && !any_reaches(values + start, floor)) continue;
    for (int64_t i = start; i < end; ++i) {
      out.values[size] = values[i];
      out.ids[size] = static_cast<int32_t>(i);
      size += values[i] >= floor;
    }
  }
  out.size = size;
}

// ---- truncation

// Everything above `weight`, and the first `ties` candidates that equal it.
struct Cut {
  float weight;
  int64_t ties;
};

struct Bucket {
  int64_t count = 0;
  double sum = 0.0;
};

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The fewest best candidates that number `count` or sum up to `mass`, whichever comes first; all if neither does.
// Radix selection, ten bits at a time: the bits of floats from 0 up to below 2 are ordered like the floats, and there are 30.
Cut find_cut(const Candidates& c, int64_t count, double mass) {
  uint32_t prefix = 0;
  Bucket above;  // everything greater than the values that start with `prefix`
  for (const int shift : {20, 10, 0}) {
    std::array<Bucket, 1024> buckets{};
    for (int64_t i = 0; i < c.size; ++i) {
      const uint32_t bits = bits_of(c.values[i]);
      if (bits >> (shift + 10) != prefix) continue;
      Bucket& bucket = buckets[bits >> shift & 1023u];
      bucket.count += 1;
      bucket.sum += c.values[i];
    }
    Bucket chosen;
    uint32_t digit = 0;
    for (uint32_t d = 1024; d-- > 0;) {
      if (buckets[d].count == 0) continue;
      above = {above.count + chosen.count, above.sum + chosen.sum};
      chosen = buckets[d];
      digit = d;
      if (above.count + chosen.count >= count || above.sum + chosen.sum >= mass) break;
    }
    prefix = prefix << 10 | digit;
  }
  Cut cut{0.0f, count - above.count};
  std::memcpy(&cut.weight, &prefix, sizeof prefix);
  const double ties_for_mass = std::ceil((mass - above.sum) / cut.weight);
  if (ties_for_mass < static_cast<double>(cut.ties)) cut.ties = std::max<int64_t>(static_cast<int64_t>(ties_for_mass), 1);
  return cut;
}

void keep(Candidates& c, Cut cut) {
  int64_t size = 0;
  for (int64_t i = 0; i < c.size; ++i) {
    const float weight = c.values[i];
    if (weight < cut.weight || (weight == cut.weight && cut.ties-- <= 0)) continue;
    c.values[size] = weight;
    c.ids[size++] = c.ids[i];
  }
  c.size = size;
}

void forbid_all_but(const Candidates& kept, float* logits, int32_t n) {
  int64_t next = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (next < kept.size && kept.ids[next] == i) {
      ++next;
    } else {
      logits[i] = kForbidden;
    }
  }
}

// ---- reported values

int32_t rank_of(const float* logits, int32_t n, int32_t token) {
  const float value = logits[token];
  int32_t better = 0;
  for (int32_t i = 0; i < token; ++i) better += logits[i] >= value;
  for (int32_t i = token + 1; i < n; ++i) better += logits[i] > value;
  return 1 + better;
}

// The ids of the k best logits, best first.
std::vector<int32_t> best_ids(const float* logits, int32_t n, int64_t k) {
  Workspace& buffers = workspace();
  Candidates& found = buffers.candidates;
  gather(logits, n, reached_by(logits, n, k, buffers.maxima), found);
  const auto better = [logits](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const auto begin = found.ids.begin();
  if (k < found.size) std::nth_element(begin, begin + k, begin + found.size, better);
  std::sort(begin, begin + k, better);
  return {begin, begin + k};
}

// Fills a row from finite logits: logits * scale, less the logarithm of the sum of their exponentials if `normalize`.
void describe(const float* logits, int32_t n, float scale, bool normalize, int32_t token, int64_t alternatives, float* scratch,
              TokenLogprob* report) {
  const float max = logits[kernels().argmax(logits, n)];
  double offset = 0.0;  // stays 0 if everything is forbidden: -inf is then the logarithm of every probability
  if (normalize && max > kForbidden) {
    offset = double{max} * scale + std::log(double{kernels().exp_sum(scratch, logits, n, max, scale)});
  }
  const auto value = [=](int32_t id) { return static_cast<float>(double{logits[id]} * scale - offset); };
  report->logprob = value(token);
  report->rank = rank_of(logits, n, token);
  const int64_t k = alternatives < 0 ? n : std::min<int64_t>(alternatives, n);
  report->ids = k > 0 ? best_ids(logits, n, k) : std::vector<int32_t>{};
  report->values.resize(report->ids.size());
  std::transform(report->ids.begin(), report->ids.end(), report->values.begin(), value);
}

}  // namespace

// ---- history

TokenHistory::TokenHistory(const int32_t* prompt, size_t prompt_length, size_t window, bool counting)
    : tokens_(prompt, prompt + prompt_length), prompt_length_(prompt_length), window_(window), counting_(counting) {
  if (!counting) return;
  const size_t seen = window > 0 ? std::min(window, prompt_length) : prompt_length;
  std::vector<int32_t> sorted(tokens_.end() - static_cast<std::ptrdiff_t>(seen), tokens_.end());
  std::sort(sorted.begin(), sorted.end());
  for (const int32_t token : sorted) {
    if (counts_.empty() || counts_.back().token != token) counts_.push_back({token, 0, 0});
    ++counts_.back().seen;
  }
}

void TokenHistory::push(int32_t token) {
  tokens_.push_back(token);
  if (counting_) count_newest(1);
}

void TokenHistory::pop() {
  if (counting_) count_newest(-1);
  tokens_.pop_back();
}

// Counts the newest token in and the one that leaves the window for it out, or with sign -1 undoes that.
void TokenHistory::count_newest(int32_t sign) {
  change(tokens_.back(), sign, sign);
  if (window_ == 0 || tokens_.size() <= window_) return;
  const int32_t leaving = tokens_[tokens_.size() - 1 - window_];
  change(leaving, -sign, num_output() > window_ ? -sign : 0);
}

void TokenHistory::change(int32_t token, int32_t seen, int32_t generated) {
  auto at = std::lower_bound(counts_.begin(), counts_.end(), token, [](const Count& c, int32_t t) { return c.token < t; });
  if (at == counts_.end() || at->token != token) at = counts_.insert(at, {token, 0, 0});
  at->seen += seen;
  at->generated += generated;
  if (at->seen == 0 && at->generated == 0) counts_.erase(at);
}

// ---- the sampler

Sampler::Sampler(SamplerParams params, const int32_t* prompt, size_t prompt_length)
    : params_(checked(std::move(params), prompt, prompt_length)),
      greedy_(params_.temperature < kGreedyBelow || params_.top_p < kGreedyBelow || params_.top_k == 1),
      scale_(greedy_ ? 1.0f : static_cast<float>(1.0 / params_.temperature)),
      history_(prompt, prompt_length, static_cast<size_t>(params_.penalty_window), penalizes()) {}

bool Sampler::penalizes() const {
  return params_.repetition_penalty != 1.0 || params_.frequency_penalty != 0.0 || params_.presence_penalty != 0.0;
}

bool Sampler::suppresses() const {
  return !params_.suppressed.empty() && num_output() < static_cast<size_t>(params_.min_tokens);
}

bool Sampler::rewrites(const uint32_t* mask) const {
  return mask != nullptr || !params_.bias.empty() || suppresses() || !params_.bad_words.empty() || penalizes();
}

bool Sampler::truncates() const {
  return params_.min_p > 0 || params_.top_p < 1 || (params_.top_k > 0 && params_.top_k < params_.vocab_size);
}

bool Sampler::reports_raw() const {
  return params_.mode == LogprobsMode::kRawLogprobs || params_.mode == LogprobsMode::kRawLogits;
}

int32_t Sampler::sample(float* logits, const uint32_t* mask, float* scratch, TokenLogprob* report) {
  const int32_t n = params_.vocab_size;
  if (!wants_logprobs()) report = nullptr;
  int32_t best = finite_argmax(logits, n);
  if (best < 0) return -1;
  const float* reported = logits;
  if (rewrites(mask)) {
    if (report != nullptr && reports_raw()) {
      std::vector<float>& raw = workspace().raw;
      raw.assign(logits, logits + n);
      reported = raw.data();
    }
    rewrite(logits, mask);
    best = finite_argmax(logits, n);
    if (best < 0) return -1;
  }
  const bool possible = logits[best] > kForbidden;
  if (!possible && !forced_) return -1;
  int32_t token = best;
  if (!greedy_ && possible) token = draw(logits, best, scratch, report != nullptr && !reports_raw());
  if (forced_) token = *forced_;
  if (report != nullptr) {
    const bool normalize = params_.mode == LogprobsMode::kRawLogprobs || params_.mode == LogprobsMode::kProcessedLogprobs;
    describe(reported, n, reports_raw() ? 1.0f : scale_, normalize, token, params_.logprobs, scratch, report);
  }
  forced_.reset();
  history_.push(token);
  return token;
}

void Sampler::rewrite(float* logits, const uint32_t* mask) const {
  for (const auto& [token, value] : params_.bias) logits[token] += value;
  if (suppresses()) {
    for (const int32_t token : params_.suppressed) logits[token] = kForbidden;
  }
  apply_penalties(logits);
  forbid_bad_words(logits);
  if (mask != nullptr) apply_mask(logits, params_.vocab_size, mask);
}

void Sampler::apply_penalties(float* logits) const {
  const auto repetition = static_cast<float>(params_.repetition_penalty);
  const auto frequency = static_cast<float>(params_.frequency_penalty);
  const auto presence = static_cast<float>(params_.presence_penalty);
  for (const TokenHistory::Count& c : history_.counts()) {
    float z = logits[c.token];
    if (c.seen > 0) z = z < 0.0f ? z * repetition : z / repetition;
    if (c.generated > 0) z -= frequency * static_cast<float>(c.generated) + presence;
    logits[c.token] = z;
  }
}

void Sampler::forbid_bad_words(float* logits) const {
  for (const auto& word : params_.bad_words) {
    const size_t before = word.size() - 1;
    if (before > num_output()) continue;
    if (std::equal(word.begin(), word.end() - 1, history_.output_end() - before)) logits[word.back()] = kForbidden;
  }
}

// With `cut_logits`, the logits of tokens that truncation removed become -inf.
int32_t Sampler::draw(float* logits, int32_t best, float* scratch, bool cut_logits) const {
  const int32_t n = params_.vocab_size;
  const double u = uniform(params_.seed, num_output());
  const double total = kernels().exp_sum(scratch, logits, n, logits[best], scale_);
  if (!truncates()) return static_cast<int32_t>(invert(scratch, n, total, u));
  const Candidates& kept = keep_likely(scratch, total, best);
  if (cut_logits) forbid_all_but(kept, logits, n);
  return kept.ids[invert(kept.values.data(), kept.size, sum(kept.values.data(), kept.size), u)];
}

// min_p, top_k and top_p. `total` is the sum of the weights, `best` the token of the greatest.
Candidates& Sampler::keep_likely(const float* weights, double total, int32_t best) const {
  Workspace& buffers = workspace();
  Candidates& kept = buffers.candidates;
  const int64_t n = params_.vocab_size;
  const bool limited = params_.top_k > 0 && params_.top_k < n;
  float floor = std::max(kNegligible, static_cast<float>(params_.min_p) * weights[best]);
  // These two floors only save work: what they drop could not be among the top_k, or is in the tail beyond top_p, with a
  // factor of two for the rounding of `total`.
  if (limited) {
    floor = std::max(floor, reached_by(weights, n, params_.top_k, buffers.maxima));
  } else if (params_.min_p == 0) {
    floor = std::max(floor, static_cast<float>(0.5 * (1.0 - params_.top_p) * total / static_cast<double>(n)));
  }
  gather(weights, n, floor, kept);
  if (limited && kept.size > params_.top_k) keep(kept, find_cut(kept, params_.top_k, std::numeric_limits<double>::infinity()));
  if (params_.top_p < 1) {
    const bool whole = !limited && params_.min_p == 0;
    keep(kept, find_cut(kept, kept.size, params_.top_p * (whole ? total : sum(kept.values.data(), kept.size))));
  }
  return kept;
}

void Sampler::push(int32_t token) {
  require_token(token, params_.vocab_size, "token");
  history_.push(token);
}

void Sampler::truncate(size_t num_output) {
  if (num_output > history_.num_output()) {
    refuse("num_output", ("at most " + std::to_string(history_.num_output())).c_str(), std::to_string(num_output));
  }
  if (num_output < history_.num_output()) forced_.reset();
  while (history_.num_output() > num_output) history_.pop();
}

void Sampler::force(int32_t token) {
  require_token(token, params_.vocab_size, "token");
  forced_ = token;
}

void token_logprob(const float* logits, int32_t vocab_size, int32_t token, int64_t alternatives, float* scratch,
                   TokenLogprob* report) {
  require_token(token, vocab_size, "token");
  if (finite_argmax(logits, vocab_size) < 0) {
    *report = {std::numeric_limits<float>::quiet_NaN(), 0, {}, {}};
    return;
  }
  describe(logits, vocab_size, 1.0f, true, token, alternatives, scratch, report);
}

}  // namespace trivium
