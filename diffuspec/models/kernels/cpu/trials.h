// Two ways to compute the same bits, of which either may be faster on a given machine: the first
// calls try both alternately.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kernels {

// The two ways for one kind of call.
class Trials {
 public:
  // Calls `compute(way)` for a call of some size, with the way that took less time per size so far.
  template <class Compute>
  void run(int64_t size, Compute compute) {
    const bool way = choose();
    const auto begun = std::chrono::steady_clock::now();
    compute(way);
    observe(way, size, std::chrono::steady_clock::now() - begun);
  }

 private:
  static constexpr int kTrials = 512;  // number of calls that are trials

  bool choose() {
    const int number = num_calls_.fetch_add(1, std::memory_order_relaxed);
    // avoids the period with which layers repeat
    if (number < kTrials) return __builtin_parity(number);
    num_calls_.store(kTrials, std::memory_order_relaxed);
    return nanoseconds_[1] * double(sizes_[0]) < nanoseconds_[0] * double(sizes_[1]);
  }

  void observe(bool way, int64_t size, std::chrono::nanoseconds time) {
    if (num_calls_.load(std::memory_order_relaxed) >= kTrials) return;
    sizes_[way].fetch_add(size, std::memory_order_relaxed);
    nanoseconds_[way].fetch_add(time.count(), std::memory_order_relaxed);
  }

  std::atomic<int> num_calls_{0};
  std::atomic<int64_t> sizes_[2] = {}, nanoseconds_[2] = {};
};

}  // namespace kernels
