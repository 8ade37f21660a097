// Chooses the kernels once, when they are first asked for.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "instruction_sets.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace trivium {

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
    found.push_back(avx512_kernels());
  }
#if defined(TRIVIUM_AVX2_VNNI)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avxvnni")) {
    found.push_back(avx2_vnni_kernels());
  }
#endif
  // F16C has no name of its own in older compilers' builtin; every CPU with AVX2 and FMA has it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(avx2_kernels());
#elif defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) found.push_back(neon_dot_kernels());
  found.push_back(neon_kernels());
#endif
  found.push_back(portable_kernels());
  return found;
}

static const Kernels& choose() {
  const auto found = available_kernels();
  const char* wanted = std::getenv("TRIVIUM_ISA");
  if (wanted == nullptr || *wanted == '\0') return *found.front();
  std::string names;
  for (const Kernels* k : found) {
    if (std::string(k->name) == wanted) return *k;
    names += (names.empty() ? "" : ", ") + std::string(k->name);
  }
  throw std::invalid_argument("TRIVIUM_ISA must be one of " + names + " on this CPU, got '" + wanted + "'");
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace trivium
