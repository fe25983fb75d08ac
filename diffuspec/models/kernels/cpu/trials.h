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
  // Calls `compute(way)` for a call of some size, with the way that was faster on average so far:
  // an average of speeds, on which a call that the system interrupted has little influence.
  template <class Compute>
  void run(int64_t size, Compute compute) {
    const int number = num_calls_.fetch_add(1, std::memory_order_relaxed);
    if (number >= kTrials) {
      num_calls_.store(kTrials, std::memory_order_relaxed);
      return compute(speeds_[1] > speeds_[0]);
    }
    const bool way = __builtin_parity(number);  // avoids the period with which layers repeat
    const auto begun = std::chrono::steady_clock::now();
    compute(way);
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begun;
    speeds_[way].fetch_add(size * 1024 / (time.count() + 1), std::memory_order_relaxed);
  }

  bool are_over() const { return num_calls_.load(std::memory_order_relaxed) >= kTrials; }

 private:
  static constexpr int kTrials = 128;  // number of calls that are trials, half of them for each way

  std::atomic<int> num_calls_{0};
  std::atomic<int64_t> speeds_[2] = {};  // sums of those of the trials
};

}  // namespace kernels
