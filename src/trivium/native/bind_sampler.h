#pragma once

#include <nanobind/nanobind.h>

#include "sampler.h"

namespace trivium {

void bind_sampler(nanobind::module_& m);

// (logprob, rank, ids of the alternatives, their values), as LogprobRow in _native.pyi.
nanobind::tuple logprob_row(const TokenLogprob& row);

}  // namespace trivium
