#pragma once

#include <nanobind/nanobind.h>

namespace trivium {

// Adds Matrix and Model to the module.
void bind_model(nanobind::module_& m);

}  // namespace trivium
