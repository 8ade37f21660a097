#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace trivium {

namespace {

constexpr uint64_t kField = (1u << 20) - 1;
constexpr int64_t kSpinNanoseconds = 200'000;  // longer than the gap between two steps
constexpr int kSlowSteps = 3;                  // steps in a row that lost a third of their time to waiting
constexpr int kSingleSteps = 64;               // then so many steps run on the caller alone

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::atomic<Pool*> Pool::current_{nullptr};

// Never destroyed: its threads may outlive static destructors, and what a fork leaves of it cannot be taken apart.
Pool& Pool::instance() {
  static const bool made = [] {
    current_ = new Pool(static_cast<int>(std::thread::hardware_concurrency()));
    return pthread_atfork(nullptr, nullptr, &Pool::replace_in_child) == 0;
  }();
  (void)made;
  return *current_.load(std::memory_order_acquire);
}

void Pool::replace_in_child() { current_ = new Pool(current_.load()->num_threads_); }

void Pool::set_num_threads(int count) {
  std::lock_guard<std::mutex> lock(owner_);
  if (count == num_threads_) return;
  stop_workers();
  num_threads_ = count;
}

void Pool::start_workers() {
  if (started_) return;
  started_ = true;
  stop_ = false;
  try {
    for (int i = 1; i < num_threads_; i++) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are do the work, to the same bits.
  }
}

void Pool::stop_workers() {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
  started_ = false;
}

void Pool::begin_step() {
  start_workers();
  waited_ns_ = 0;
  step_start_ns_ = now_ns();
}

void Pool::end_step() {
  if (single_steps_ > 0) {
    single_steps_--;
    return;
  }
  const int64_t elapsed = now_ns() - step_start_ns_;
  slow_steps_ = 3 * waited_ns_ > elapsed ? slow_steps_ + 1 : 0;
  if (slow_steps_ >= kSlowSteps) {
    slow_steps_ = 0;
    single_steps_ = kSingleSteps;
  }
}

// Takes the next index of the published loop. `published` tells whether there is an unfinished loop at all.
bool Pool::claim(int* index, bool* published) {
  const uint64_t seen = loop_.load(std::memory_order_acquire);
  *published = (seen & kField) < ((seen >> 20) & kField);
  if (!*published) return false;
  const uint64_t mine = loop_.fetch_add(1, std::memory_order_acq_rel);
  *index = static_cast<int>(mine & kField);
  return (mine & kField) < ((mine >> 20) & kField);
}

// An exception must not leave a worker: it would end the process.
void Pool::run_one(Body body, const void* context, int index) {
  try {
    body(context, index);
  } catch (...) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

void Pool::run_erased(int count, Body body, const void* context) {
  if (count <= 1 || num_threads_ == 1 || single_steps_ > 0) {
    for (int i = 0; i < count; i++) body(context, i);
    return;
  }
  // Far below what the fields of `loop_` hold: workers that come late push `next` a little beyond `count`.
  constexpr int kSlice = 1 << 19;
  for (int begin = 0; begin < count; begin += kSlice) run_slice(begin, std::min(kSlice, count - begin), body, context);
}

void Pool::run_slice(int begin, int count, Body body, const void* context) {
  begin_ = begin;
  body_ = body;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  epoch_++;
  loop_.store(epoch_ << 40 | static_cast<uint64_t>(count) << 20, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_.notify_all();
  }
  int mine = 0, index;
  bool published;
  while (claim(&index, &published)) {
    run_one(body, context, begin + index);
    mine++;
  }
  int spins = 0;
  int64_t since = 0;
  done_.fetch_add(mine, std::memory_order_acq_rel);
  while (done_.load(std::memory_order_acquire) < count) {
    pause();
    if (++spins == 1000) since = now_ns();
  }
  if (since != 0) waited_ns_ += now_ns() - since;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::work() {
  int64_t idle_since = now_ns();
  int spins = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    int index;
    bool published;
    if (claim(&index, &published)) {
      // Between the claim and its completion the caller cannot return, so body and context stay as published.
      run_one(body_, context_, begin_ + index);
      done_.fetch_add(1, std::memory_order_acq_rel);
      spins = 0;
      continue;
    }
    pause();
    if (++spins == 1) idle_since = now_ns();
    if (spins % 64 != 0 || now_ns() - idle_since < kSpinNanoseconds) continue;
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [this] {
      const uint64_t seen = loop_.load(std::memory_order_seq_cst);
      return stop_.load() || (seen & kField) < ((seen >> 20) & kField);
    });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    spins = 0;
  }
}

}  // namespace trivium
