#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace trivium {

namespace {

constexpr int kCountBits = 20;
constexpr uint64_t kCount = (1u << kCountBits) - 1;
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
  shares_ = std::make_unique<Share[]>(static_cast<size_t>(num_threads_));
  given_away_ = 0;
  loop_.store((loop_.load() >> kCountBits) << kCountBits);  // of nothing, for workers who see it first
  try {
    for (int i = 1; i < num_threads_; i++) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are do the work, to the same bits.
  }
  live_threads_ = 1 + static_cast<int>(workers_.size());
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

// Takes the next index of a thread's range. That succeeds only while the loop lasts, and a loop lasts until what was claimed is done: so
// body and context are the loop's.
bool Pool::claim(uint64_t loop, int whose, int* index) {
  const int count = static_cast<int>(loop & kCount), begin = range_begin(count, whose, live_threads_);
  const uint64_t number = loop >> kCountBits, size = static_cast<uint64_t>(range_begin(count, whose + 1, live_threads_) - begin);
  std::atomic<uint64_t>& claimed = shares_[whose].claimed;
  uint64_t seen = claimed.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t of = seen >> kCountBits, taken = of == number ? seen & kCount : 0;
    if (of > number || taken >= size) return false;
    if (claimed.compare_exchange_weak(seen, number << kCountBits | (taken + 1), std::memory_order_acq_rel, std::memory_order_relaxed)) {
      *index = begin + static_cast<int>(taken);
      return true;
    }
  }
}

// An exception must not leave a worker: it would end the process.
void Pool::run_one(int index) {
  try {
    body_(context_, begin_ + index);
  } catch (...) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

// Runs what there is, first of the thread's own range. How many indices that were.
int Pool::take_part(uint64_t loop, int thread) {
  Share& mine = shares_[thread];
  // With an index each there is nothing to help with: the caller takes those whose thread does not.
  const bool helps = thread == 0 || static_cast<int>(loop & kCount) > live_threads_;
  int count = 0, index;
  for (int i = 0; i < (helps ? live_threads_ : 1); i++) {
    while (claim(loop, (thread + i) % live_threads_, &index)) {
      run_one(index);
      count++;
      if (thread > 0) mine.done.store(mine.done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
  }
  return count;
}

uint64_t Pool::done() const {
  uint64_t sum = 0;
  for (int i = 1; i < live_threads_; i++) sum += shares_[i].done.load(std::memory_order_acquire);
  return sum;
}

void Pool::run_erased(int count, Body body, const void* context) {
  if (count <= 1 || live_threads_ == 1 || single_steps_ > 0) {
    for (int i = 0; i < count; i++) body(context, i);
    return;
  }
  constexpr int kSlice = kCount;
  for (int begin = 0; begin < count; begin += kSlice) run_slice(begin, std::min(kSlice, count - begin), body, context);
}

void Pool::run_slice(int begin, int count, Body body, const void* context) {
  begin_ = begin;
  body_ = body;
  context_ = context;
  const uint64_t loop = ((loop_.load(std::memory_order_relaxed) >> kCountBits) + 1) << kCountBits | static_cast<uint64_t>(count);
  loop_.store(loop, std::memory_order_release);
  // Whoever falls asleep at this moment may be missed: the next loop wakes it, and this one does without.
  if (sleepers_.load(std::memory_order_relaxed) > 0) {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_.notify_all();
  }
  given_away_ += static_cast<uint64_t>(count - take_part(loop, 0));
  int spins = 0;
  int64_t since = 0;
  while (done() < given_away_) {
    pause();
    if (++spins == 1000) since = now_ns();
  }
  if (since != 0) waited_ns_ += now_ns() - since;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::work(int thread) {
  int64_t idle_since = now_ns();
  int spins = 0;
  uint64_t last = 0;  // the loop of which nothing is left
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t loop = loop_.load(std::memory_order_acquire);
    if (loop != last) {
      take_part(loop, thread);
      last = loop;
      spins = 0;
      continue;
    }
    pause();
    if (++spins == 1) idle_since = now_ns();
    if (spins % 64 != 0 || now_ns() - idle_since < kSpinNanoseconds) continue;
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return stop_.load() || loop_.load(std::memory_order_seq_cst) != last; });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    spins = 0;
  }
}

}  // namespace trivium
