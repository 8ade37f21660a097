// The Python module `trivium._native`; signatures and documentation are in _native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind_model.h"
#include "bind_sampler.h"
#include "kernels/instruction_sets.h"
#include "pool.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object dequantize_array(int type, Bytes data, int64_t count) {
  const auto kind = static_cast<TensorType>(type);
  if (tensor_bytes(kind, count) > data.size()) throw std::invalid_argument("the data is too short for " + std::to_string(count) + " elements");
  auto* out = new std::vector<float>(static_cast<size_t>(count));
  nb::capsule owner(out, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  dequantize(kind, data.data(), count, out->data());
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(out->data(), {out->size()}, owner));
}

void set_num_threads(int count) {
  if (count < 1 || count > 256) throw std::invalid_argument("the number of threads must be 1..256, got " + std::to_string(count));
  nb::gil_scoped_release release;
  Pool::instance().set_num_threads(count);
}

}  // namespace

}  // namespace trivium

NB_MODULE(_native, m) {
  using namespace trivium;
  m.def("available_instruction_sets", [] {
    std::vector<std::string> names;
    for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
    return names;
  });
  m.def("instruction_set", [] { return std::string(kernels().name); });
  m.def("bytes_by_bytes", [] { return kernels().bytes_by_bytes; });
  m.def("num_threads", [] { return Pool::instance().num_threads(); });
  m.def("set_num_threads", &set_num_threads, "count"_a);
  m.def("dequantize", &dequantize_array, "type"_a, "data"_a, "count"_a);
  bind_sampler(m);
  bind_model(m);
}
