// The instruction sets that this build and this CPU have, best first.
#pragma once

#include <vector>

#include "kernels.h"

namespace trivium {

std::vector<const Kernels*> available_kernels();

}  // namespace trivium
