// Python's view of matrices and models: checks arrays, releases the GIL, converts results.
#include "bind_model.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "activations.h"
#include "bind_sampler.h"
#include "step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium {

namespace {

template <typename T, int Dims>
using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Int1 = Array<int32_t, 1>;
using AnyInt = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Float1 = Array<float, 1>;
using Float2 = Array<float, 2>;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

template <typename... Shape>
nb::object float_array(std::vector<float> values, Shape... shape) {
  auto* owned = new std::vector<float>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, float>(owned->data(), {static_cast<size_t>(shape)...}, owner));
}

PackMode to_pack_mode(const std::string& name) {
  if (name == "auto") return PackMode::kAuto;
  if (name == "float32") return PackMode::kFloat32;
  if (name == "wint8") return PackMode::kWint8;
  if (name == "wint4") return PackMode::kWint4;
  fail("mode must be auto, float32, wint8 or wint4, got '" + name + "'");
}

ActivationMode to_activation_mode(const std::string& name) {
  if (name == "auto") return ActivationMode::kAuto;
  if (name == "int8") return ActivationMode::kInt8;
  if (name == "int16") return ActivationMode::kInt16;
  if (name == "float32") return ActivationMode::kFloat32;
  fail("activation must be auto, int8, int16 or float32, got '" + name + "'");
}

KvType to_kv_type(const std::string& name) {
  if (name == "float16") return KvType::kFloat16;
  if (name == "float32") return KvType::kFloat32;
  if (name == "int16") return KvType::kInt16;
  if (name == "int8") return KvType::kInt8;
  fail("kv_dtype must be int16, int8, float16 or float32, got '" + name + "'");
}

std::shared_ptr<Matrix> make_matrix(int32_t rows, int32_t cols, const std::vector<std::tuple<int, Array<uint8_t, 1>>>& sources,
                                    const std::string& mode) {
  std::vector<Source> list;
  for (const auto& [type, data] : sources) list.push_back({static_cast<TensorType>(type), data.data(), data.size()});
  const PackMode pack_mode = to_pack_mode(mode);
  nb::gil_scoped_release release;
  return std::make_shared<Matrix>(rows, cols, list, pack_mode);
}

nb::object matmul(const std::shared_ptr<Matrix>& matrix, Float2 x, const std::string& activation) {
  const int rows = static_cast<int>(x.shape(0)), cols = static_cast<int>(x.shape(1));
  if (cols != matrix->cols()) fail("x has " + std::to_string(cols) + " columns, expected " + std::to_string(matrix->cols()));
  const ActivationMode mode = to_activation_mode(activation);
  const Linear linear{{matrix}, {}};
  Activations activations;
  std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(matrix->rows()));
  {
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(Pool::instance().owner());
    Pool::instance().begin_step();
    activations.reserve(linear, mode, rows, cols);
    for (int i = 0; i < rows; i++) activations.set_row(i, x.data() + static_cast<int64_t>(i) * cols);
    multiply(linear, activations, rows, {out.data(), matrix->rows(), nullptr, false, 1.0f}, mode);
    Pool::instance().end_step();
  }
  return float_array(std::move(out), rows, matrix->rows());
}

template <typename T>
T get(const nb::dict& spec, const char* key) {
  if (!spec.contains(key)) fail(std::string("model specification: ") + key + " is missing");
  try {
    return nb::cast<T>(spec[key]);
  } catch (const nb::cast_error&) {
    fail(std::string("model specification: ") + key + " has the wrong type");
  }
}

std::vector<float> to_floats(const Float1& array) { return {array.data(), array.data() + array.size()}; }

ModelConfig to_config(const nb::dict& spec) {
  ModelConfig c{};
  c.vocab_size = get<int32_t>(spec, "vocab_size");
  c.hidden_size = get<int32_t>(spec, "hidden_size");
  c.num_layers = get<int32_t>(spec, "num_layers");
  c.num_heads = get<int32_t>(spec, "num_heads");
  c.num_kv_heads = get<int32_t>(spec, "num_kv_heads");
  c.head_dim = get<int32_t>(spec, "head_dim");
  c.intermediate_size = get<int32_t>(spec, "intermediate_size");
  c.norm_eps = get<float>(spec, "norm_eps");
  c.attention_scale = get<float>(spec, "attention_scale");
  c.inv_freq = to_floats(get<Float1>(spec, "inv_freq"));
  c.rope_interleaved = get<bool>(spec, "rope_interleaved");
  c.attention_factor = get<float>(spec, "attention_factor");
  c.sections = get<std::vector<int32_t>>(spec, "sections");
  c.windows = get<std::vector<int32_t>>(spec, "windows");
  c.moe_layers = get<std::vector<bool>>(spec, "moe_layers");
  c.num_experts = get<int32_t>(spec, "num_experts");
  c.experts_per_token = get<int32_t>(spec, "experts_per_token");
  c.expert_size = get<int32_t>(spec, "expert_size");
  c.shared_size = get<int32_t>(spec, "shared_size");
  const auto scoring = get<std::string>(spec, "scoring");
  if (scoring != "softmax" && scoring != "sigmoid") fail("model specification: scoring must be softmax or sigmoid, got '" + scoring + "'");
  c.sigmoid_scoring = scoring == "sigmoid";
  c.normalize = get<bool>(spec, "normalize");
  c.norm_min = get<float>(spec, "norm_min");
  c.expert_scale = get<float>(spec, "expert_scale");
  c.qk_norm = get<bool>(spec, "qk_norm");
  c.embedding_multiplier = get<float>(spec, "embedding_multiplier");
  c.residual_multiplier = get<float>(spec, "residual_multiplier");
  c.logit_scale = get<float>(spec, "logit_scale");
  c.tied_output = get<bool>(spec, "tied_output");
  c.activation = to_activation_mode(get<std::string>(spec, "activation"));
  return c;
}

// What Python calls Model: weights, cache and stepper.
class Runner {
 public:
  explicit Runner(const nb::dict& spec) : model_(to_config(spec)) {}

  Model& model() { return model_; }

  void allocate(int num_blocks, int block_size, const std::string& kv_dtype) {
    auto cache = std::make_unique<KvCache>(model_.config, num_blocks, block_size, to_kv_type(kv_dtype));
    auto stepper = std::make_unique<Stepper>(model_, *cache);
    stepper_ = std::move(stepper);  // before the cache it stands on
    cache_ = std::move(cache);
  }

  KvCache& cache() {
    if (cache_ == nullptr) fail("allocate_cache has not been called");
    return *cache_;
  }

  StepOutput run(const StepInput& input) {
    cache();
    nb::gil_scoped_release release;
    return stepper_->run(input);
  }

 private:
  Model model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Stepper> stepper_;
};

using Additions = std::vector<std::tuple<int32_t, Int1, Float2>>;
using PromptRows = std::vector<std::tuple<int32_t, int32_t, Int1>>;

void take_sequences(StepInput* in, const Int1& query_starts, const Int1& context_lens, const Array<int32_t, 2>& block_tables) {
  if (query_starts.size() < 2) fail("query_starts needs at least two entries");
  in->num_sequences = static_cast<int32_t>(query_starts.size()) - 1;
  const auto sequences = static_cast<size_t>(in->num_sequences);
  if (context_lens.size() != sequences) fail("context_lens must have one entry per sequence");
  if (block_tables.shape(0) != sequences) fail("block_tables must have one row per sequence");
  in->query_starts = query_starts.data();
  in->context_lens = context_lens.data();
  in->block_tables = block_tables.data();
  in->block_table_width = static_cast<int32_t>(block_tables.shape(1));
}

void take_rows(StepInput* in, const Int1& token_ids, const AnyInt& positions) {
  in->num_rows = static_cast<int32_t>(token_ids.size());
  in->token_ids = token_ids.data();
  in->positions = positions.data();
  const bool flat = positions.ndim() == 1;
  if (!(flat || (positions.ndim() == 2 && positions.shape(0) == 3)) || positions.shape(positions.ndim() - 1) != token_ids.size()) {
    fail("positions must be [rows] or [3, rows]");
  }
  in->position_components = flat ? 1 : 3;
}

void take_masks(StepInput* in, const std::optional<Int1>& drafts, const std::optional<Array<uint32_t, 2>>& masks,
                const std::optional<Int1>& mask_rows, int32_t vocab_size) {
  const auto sequences = static_cast<size_t>(in->num_sequences);
  if (drafts) {
    if (drafts->size() != sequences) fail("num_drafts must have one entry per sequence");
    in->num_drafts = drafts->data();
  }
  if (masks.has_value() != mask_rows.has_value()) fail("masks and mask_rows go together");
  if (!masks) return;
  if (mask_rows->size() != sequences) fail("mask_rows must have one entry per sequence");
  if (masks->shape(1) != static_cast<size_t>((vocab_size + 31) / 32)) fail("masks must have a bit per token of the vocabulary");
  in->masks = masks->data();
  in->num_masks = static_cast<int32_t>(masks->shape(0));
  in->mask_rows = mask_rows->data();
}

void take_vectors(StepInput* in, const std::optional<Float2>& embeddings, const std::optional<Int1>& embedding_rows,
                  const Additions& additions, int32_t hidden) {
  if (embeddings.has_value() != embedding_rows.has_value()) fail("embeddings and embedding_rows go together");
  if (embeddings) {
    if (embeddings->shape(0) != embedding_rows->size() || embeddings->shape(1) != static_cast<size_t>(hidden)) {
      fail("embeddings must be [len(embedding_rows), hidden_size]");
    }
    in->embeddings = embeddings->data();
    in->embedding_rows = embedding_rows->data();
    in->num_embeddings = static_cast<int32_t>(embedding_rows->size());
  }
  for (const auto& [layer, rows, values] : additions) {
    if (values.shape(0) != rows.size() || values.shape(1) != static_cast<size_t>(hidden)) {
      fail("layer_additions: values must be [len(rows), hidden_size]");
    }
    in->layer_additions.push_back({layer, {rows.data(), rows.data() + rows.size()}, values.data()});
  }
}

nb::object report_rows(const std::vector<TokenLogprob>& rows, bool wanted) {
  if (!wanted) return nb::none();
  nb::list out;
  for (const TokenLogprob& row : rows) out.append(logprob_row(row));
  return out;
}

struct StepResult {
  nb::list tokens, logprobs, prompt_logprobs;
};

StepResult to_result(const StepOutput& out, const StepInput& in) {
  StepResult result;
  std::vector<bool> prompt_wanted(out.tokens.size());
  for (const auto& p : in.prompt_logprobs) prompt_wanted[static_cast<size_t>(p.sequence)] = true;
  for (size_t s = 0; s < out.tokens.size(); s++) {
    nb::list tokens;
    for (int32_t t : out.tokens[s]) tokens.append(t);
    result.tokens.append(tokens);
    result.logprobs.append(report_rows(out.logprobs[s], in.samplers[s] != nullptr && in.samplers[s]->wants_logprobs()));
    result.prompt_logprobs.append(report_rows(out.prompt_logprobs[s], prompt_wanted[s]));
  }
  return result;
}

StepResult step(Runner& self, Int1 token_ids, AnyInt positions, Int1 query_starts, Int1 context_lens, Array<int32_t, 2> block_tables,
                const nb::sequence& samplers, std::optional<Int1> num_drafts, std::optional<Array<uint32_t, 2>> masks,
                std::optional<Int1> mask_rows, const PromptRows& prompt_logprobs, std::optional<Float2> embeddings,
                std::optional<Int1> embedding_rows, const Additions& layer_additions) {
  StepInput in;
  const ModelConfig& config = self.model().config;
  take_rows(&in, token_ids, positions);
  take_sequences(&in, query_starts, context_lens, block_tables);
  take_masks(&in, num_drafts, masks, mask_rows, config.vocab_size);
  take_vectors(&in, embeddings, embedding_rows, layer_additions, config.hidden_size);
  for (nb::handle sampler : samplers) in.samplers.push_back(sampler.is_none() ? nullptr : nb::cast<Sampler*>(sampler));
  for (const auto& [sequence, alternatives, next] : prompt_logprobs) {
    in.prompt_logprobs.push_back({sequence, alternatives, {next.data(), next.data() + next.size()}});
  }
  return to_result(self.run(in), in);
}

// One sequence alone in the first blocks of the cache.
nb::object logits(Runner& self, Int1 token_ids) {
  const auto rows = static_cast<int32_t>(token_ids.size());
  const int block_size = self.cache().block_size();
  std::vector<int32_t> positions(token_ids.size()), blocks(static_cast<size_t>((rows + block_size - 1) / block_size));
  for (size_t i = 0; i < positions.size(); i++) positions[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < blocks.size(); i++) blocks[i] = static_cast<int32_t>(i);
  const int32_t starts[2] = {0, rows};
  std::vector<float> out(token_ids.size() * static_cast<size_t>(self.model().config.vocab_size));
  StepInput in;
  in.num_rows = rows;
  in.num_sequences = 1;
  in.token_ids = token_ids.data();
  in.positions = positions.data();
  in.query_starts = starts;
  in.context_lens = &rows;
  in.block_tables = blocks.data();
  in.block_table_width = static_cast<int32_t>(blocks.size());
  in.samplers = {nullptr};
  in.all_logits = out.data();
  self.run(in);
  return float_array(std::move(out), rows, self.model().config.vocab_size);
}

void set_vector(Runner& self, const std::string& name, const Float1& values) { self.model().set_vector(name, to_floats(values)); }

void set_matrix(Runner& self, const std::string& name, std::shared_ptr<Matrix> matrix) {
  self.model().set_matrix(name, std::move(matrix));
}

nb::object matrix_row(const Matrix& m, int32_t index) {
  if (index < 0 || index >= m.rows()) throw nb::index_error("no such row");
  std::vector<float> row(static_cast<size_t>(m.cols()));
  m.read_row(index, row.data());
  return float_array(std::move(row), m.cols());
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix")
      .def(nb::new_(&make_matrix), "rows"_a, "cols"_a, "sources"_a, "mode"_a)
      .def_prop_ro("rows", &Matrix::rows)
      .def_prop_ro("cols", &Matrix::cols)
      .def_prop_ro("nbytes", &Matrix::nbytes)
      .def_prop_ro("family", &Matrix::family)
      .def("row", &matrix_row, "index"_a)
      .def("matmul", [](const std::shared_ptr<Matrix>& self, Float2 x, const std::string& a) { return matmul(self, x, a); }, "x"_a,
           "activation"_a);
  nb::class_<StepResult>(m, "StepResult")
      .def_ro("tokens", &StepResult::tokens)
      .def_ro("logprobs", &StepResult::logprobs)
      .def_ro("prompt_logprobs", &StepResult::prompt_logprobs);
  nb::class_<Runner>(m, "Model")
      .def(nb::init<const nb::dict&>(), "spec"_a)
      .def("set_matrix", &set_matrix, "name"_a, "matrix"_a)
      .def("set_vector", &set_vector, "name"_a, "values"_a)
      .def("finish", [](Runner& self) { self.model().finish(); })
      .def_prop_ro("weight_bytes", [](Runner& self) { return self.model().weight_bytes(); })
      .def("block_bytes",
           [](Runner& self, int block_size, const std::string& kv) { return KvCache::block_bytes(self.model().config, block_size, to_kv_type(kv)); },
           "block_size"_a, "kv_dtype"_a)
      .def("allocate_cache", &Runner::allocate, "num_blocks"_a, "block_size"_a, "kv_dtype"_a)
      .def("copy_blocks", [](Runner& self, const std::vector<std::pair<int, int>>& pairs) { self.cache().copy_blocks(pairs); }, "pairs"_a)
      .def("step", &step, "token_ids"_a, "positions"_a, "query_starts"_a, "context_lens"_a, "block_tables"_a, "samplers"_a,
           "num_drafts"_a = nb::none(), "masks"_a = nb::none(), "mask_rows"_a = nb::none(), "prompt_logprobs"_a = nb::make_tuple(),
           "embeddings"_a = nb::none(), "embedding_rows"_a = nb::none(), "layer_additions"_a = nb::make_tuple())
      .def("logits", &logits, "token_ids"_a);
}

}  // namespace trivium
