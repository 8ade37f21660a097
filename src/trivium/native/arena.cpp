#include "arena.h"

#include <pthread.h>
#include <sys/mman.h>

#include <mutex>
#include <new>

namespace trivium {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Arena {
  std::mutex mutex;
  std::weak_ptr<uint8_t> chunk;  // lives as long as its matrices
  size_t used = 0;
};

Arena* arena = nullptr;

// The lock may be held at the moment of a fork, by a thread that the child does not have.
Arena& current_arena() {
  static const bool made = [] {
    arena = new Arena;
    return pthread_atfork(nullptr, nullptr, [] { arena = new Arena; }) == 0;
  }();
  (void)made;
  return *arena;
}

}  // namespace

std::shared_ptr<uint8_t> map_memory(size_t bytes) {
  // One huge page more, so that the part in use can start on a huge page.
  const size_t size = round_up(bytes == 0 ? 1 : bytes, kHugePage) + kHugePage;
  if (size < bytes) throw std::bad_alloc();
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  auto* start = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(p), kHugePage));
#ifdef MADV_HUGEPAGE
  madvise(start, size - kHugePage, MADV_HUGEPAGE);  // a wish: what the system answers does not matter
#endif
  return std::shared_ptr<uint8_t>(start, [p, size](uint8_t*) { munmap(p, size); });
}

std::shared_ptr<uint8_t> arena_allocate(size_t bytes) {
  const size_t size = round_up(bytes == 0 ? 1 : bytes, 64);
  if (size > kChunk / 4) return map_memory(bytes);
  Arena& a = current_arena();
  std::lock_guard<std::mutex> lock(a.mutex);
  std::shared_ptr<uint8_t> chunk = a.chunk.lock();
  if (chunk == nullptr || a.used + size > kChunk) {
    chunk = map_memory(kChunk);
    a.chunk = chunk;
    a.used = 0;
  }
  uint8_t* p = chunk.get() + a.used;
  a.used += size;
  return std::shared_ptr<uint8_t>(chunk, p);
}

}  // namespace trivium
