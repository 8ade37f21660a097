// The process-wide thread pool of the kernels.
//
// A parallel loop is published as one 64-bit word (its number, its count). Each thread has a range of the indices, neighbours of which it
// claims one after the other, and then helps the others with theirs. The caller takes part and never waits for a thread that has claimed
// nothing, so a worker that the system has descheduled delays a loop only if it was in the middle of an index. When even that happens
// often, the pool stays on the calling thread for a while.
//
// A cache line that two cores write takes a tenth of a microsecond to go from one to the other, and a step has hundreds of loops. So the
// caller writes one line per loop, which the workers read, and a thread claims and counts in a line of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace trivium {

class Pool {
 public:
  // The only pool. Its threads start with the first step. A forked child gets a new one: the parent's threads do not exist there,
  // and its locks and waiters are in the state of the moment of the fork.
  static Pool& instance();

  // Threads that work on a loop, the caller included.
  int num_threads() const { return num_threads_; }
  void set_num_threads(int count);

  // Where, of a loop over `count` indices, the range of a thread begins; the caller's, which is the first, is never empty.
  static int range_begin(int count, int thread, int threads) {
    return static_cast<int>((static_cast<int64_t>(count) * thread + threads - 1) / threads);
  }

  // Held by a model while it computes: loops of two callers never mix.
  std::mutex& owner() { return owner_; }

  // Called at the start and the end of a step by its owner; between them workers spin, after it they go to sleep.
  void begin_step();
  void end_step();

  // Run f(i) for i in [0, count); f(i) may run on any thread, in any order. The first exception of any f(i) is thrown
  // here after all have ended.
  template <typename F>
  void run(int count, const F& f) {
    run_erased(count, [](const void* context, int i) { (*static_cast<const F*>(context))(i); }, &f);
  }

 private:
  using Body = void (*)(const void*, int);

  // What a thread writes.
  struct alignas(64) Share {
    std::atomic<uint64_t> claimed{0};  // of the range that is the thread's: a loop's number and, below it, how many; others help, and write it too
    std::atomic<uint64_t> done{0};     // what the thread, if it is a worker, has run of all loops
  };

  explicit Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {}
  static void replace_in_child();
  void run_slice(int begin, int count, Body body, const void* context);
  void run_erased(int count, Body body, const void* context);
  void work(int thread);
  int take_part(uint64_t loop, int thread);
  bool claim(uint64_t loop, int whose, int* index);
  uint64_t done() const;
  void run_one(int index);
  void start_workers();
  void stop_workers();

  static std::atomic<Pool*> current_;

  std::mutex owner_;
  int num_threads_;
  std::vector<std::thread> workers_;
  bool started_ = false;

  // What the caller writes for a loop.
  alignas(64) std::atomic<uint64_t> loop_{0};  // number and, below it, count
  Body body_ = nullptr;
  const void* context_ = nullptr;
  int begin_ = 0;  // of the slice being run

  alignas(64) std::unique_ptr<Share[]> shares_;
  int live_threads_ = 1;      // those that the system gave
  uint64_t given_away_ = 0;   // indices that were not the caller's, of all loops
  std::mutex error_mutex_;
  std::exception_ptr error_;

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};

  // How the pool notices that its workers do not get their cores.
  int64_t waited_ns_ = 0;
  int64_t step_start_ns_ = 0;
  int slow_steps_ = 0;
  int single_steps_ = 0;
};

}  // namespace trivium
