// Memory for weights and KV: large zeroed mappings that ask the system for huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trivium {

// A private mapping, unmapped with its last owner. Throws std::bad_alloc.
std::shared_ptr<uint8_t> map_memory(size_t bytes);

// 64-byte aligned zeroed memory cut from shared mappings, so that small matrices share huge pages.
std::shared_ptr<uint8_t> arena_allocate(size_t bytes);

}  // namespace trivium
