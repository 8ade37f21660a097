// The process-wide thread pool of the kernels.
//
// A parallel loop is published as one 64-bit word (epoch, count, next); whoever claims an index runs it. The caller takes part and
// never waits for a thread that has claimed nothing, so a worker that the system has descheduled delays a loop only if it was
// in the middle of an index. When even that happens often, the pool stays on the calling thread for a while.
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

  explicit Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {}
  static void replace_in_child();
  void run_slice(int begin, int count, Body body, const void* context);
  void run_erased(int count, Body body, const void* context);
  void work();
  bool claim(int* index, bool* published);
  void run_one(Body body, const void* context, int index);
  void start_workers();
  void stop_workers();

  static std::atomic<Pool*> current_;

  std::mutex owner_;
  int num_threads_;
  std::vector<std::thread> workers_;
  bool started_ = false;

  alignas(64) std::atomic<uint64_t> loop_{0};  // epoch << 40 | count << 20 | next
  alignas(64) std::atomic<int> done_{0};
  alignas(64) Body body_ = nullptr;
  int begin_ = 0;  // of the slice being run
  const void* context_ = nullptr;
  uint64_t epoch_ = 0;
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
