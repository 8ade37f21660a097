// Python's view of the sampler; the signatures and their documentation are in _native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind_sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium {

namespace {

template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::vector<T> to_vector(const std::optional<Vector<T>>& array) {
  if (!array) return {};
  return {array->data(), array->data() + array->size()};
}

template <typename T>
nb::object to_array(const std::vector<T>& values) {
  auto* copy = new std::vector<T>(values);
  nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(copy->data(), {copy->size()}, owner));
}

LogprobsMode to_mode(const std::string& name) {
  if (name == "raw_logprobs") return LogprobsMode::kRawLogprobs;
  if (name == "processed_logprobs") return LogprobsMode::kProcessedLogprobs;
  if (name == "raw_logits") return LogprobsMode::kRawLogits;
  if (name == "processed_logits") return LogprobsMode::kProcessedLogits;
  throw std::invalid_argument(
      "logprobs_mode must be raw_logprobs, processed_logprobs, raw_logits or processed_logits, got '" + name + "'");
}

std::vector<std::pair<int32_t, float>> to_bias(const std::vector<int32_t>& ids, const std::vector<float>& values) {
  if (ids.size() != values.size()) {
    throw std::invalid_argument("bias_values must be as long as bias_ids (" + std::to_string(ids.size()) + "), got " +
                                std::to_string(values.size()));
  }
  std::vector<std::pair<int32_t, float>> bias;
  for (size_t i = 0; i < ids.size(); ++i) bias.emplace_back(ids[i], values[i]);
  return bias;
}

void construct(Sampler* self, int32_t vocab_size, Vector<int32_t> prompt, uint64_t seed, double temperature, int64_t top_k,
               double top_p, double min_p, double repetition_penalty, double presence_penalty, double frequency_penalty,
               int64_t penalty_window, int64_t min_tokens, const std::optional<Vector<int32_t>>& suppressed,
               std::vector<std::vector<int32_t>> bad_words, const std::optional<Vector<int32_t>>& bias_ids,
               const std::optional<Vector<float>>& bias_values, int64_t logprobs, const std::string& logprobs_mode) {
  SamplerParams p;
  p.vocab_size = vocab_size;
  p.seed = seed;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  p.repetition_penalty = repetition_penalty;
  p.presence_penalty = presence_penalty;
  p.frequency_penalty = frequency_penalty;
  p.penalty_window = penalty_window;
  p.min_tokens = min_tokens;
  p.suppressed = to_vector(suppressed);
  p.bad_words = std::move(bad_words);
  p.bias = to_bias(to_vector(bias_ids), to_vector(bias_values));
  p.logprobs = logprobs;
  p.mode = to_mode(logprobs_mode);
  new (self) Sampler(std::move(p), prompt.data(), prompt.size());
}

nb::tuple sample(Sampler& self, Vector<float> logits, const std::optional<Vector<uint32_t>>& mask) {
  const auto n = static_cast<size_t>(self.vocab_size());
  if (logits.size() != n) {
    throw std::invalid_argument("logits must have " + std::to_string(n) + " elements, got " + std::to_string(logits.size()));
  }
  const size_t words = (n + 31) / 32;
  if (mask && mask->size() != words) {
    throw std::invalid_argument("mask must have " + std::to_string(words) + " words, got " + std::to_string(mask->size()));
  }
  std::vector<float> copy(logits.data(), logits.data() + n);
  std::vector<float> scratch(n);
  TokenLogprob row;
  const int32_t token = self.sample(copy.data(), mask ? mask->data() : nullptr, scratch.data(), &row);
  const bool reported = token >= 0 && self.wants_logprobs();
  return nb::make_tuple(token, reported ? nb::object(logprob_row(row)) : nb::none());
}

}  // namespace

nb::tuple logprob_row(const TokenLogprob& row) {
  return nb::make_tuple(row.logprob, row.rank, to_array(row.ids), to_array(row.values));
}

void bind_sampler(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "How one sequence chooses its next token.")
      .def("__init__", &construct, nb::kw_only(), "vocab_size"_a, "prompt"_a.noconvert(), "seed"_a, "temperature"_a = 1.0,
           "top_k"_a = 0, "top_p"_a = 1.0, "min_p"_a = 0.0, "repetition_penalty"_a = 1.0, "presence_penalty"_a = 0.0,
           "frequency_penalty"_a = 0.0, "penalty_window"_a = 0, "min_tokens"_a = 0, "suppressed"_a.noconvert() = nb::none(),
           "bad_words"_a = nb::make_tuple(), "bias_ids"_a.noconvert() = nb::none(), "bias_values"_a.noconvert() = nb::none(),
           "logprobs"_a = -2, "logprobs_mode"_a = "raw_logprobs")
      .def_prop_ro("num_output", &Sampler::num_output)
      .def("force", &Sampler::force, "token"_a)
      .def("push", &Sampler::push, "token"_a)
      .def("truncate", &Sampler::truncate, "num_output"_a)
      .def("sample", &sample, "logits"_a.noconvert(), "mask"_a.noconvert() = nb::none());
}

}  // namespace trivium
