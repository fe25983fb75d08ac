// Weights fetched into the second-level cache before they are needed. Some processors read them faster
// so, others slower: the first products try both ways in turns. Results are the same.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "vectors.h"

namespace kernels {

// A range of memory that is fetched in equal shares, one in each step of a computation. A processor has
// room for few fetches at a time: it waits for many at once, and computes beside an even stream.
class Ahead {
 public:
  Ahead() = default;  // an empty range

  // `num_bytes` from `first` on, for `num_steps` steps.
  Ahead(const void* first, int64_t num_bytes, int64_t num_steps)
      : next_(static_cast<const char*>(first)),
        share_(int((num_bytes + num_steps - 1) / num_steps)) {}

  // Starts to fetch the next share.
  INLINE void fetch() {
    for (int byte = 0; byte < share_; byte += kLine) __builtin_prefetch(next_ + byte, 0, kSecondLevel);
    next_ += share_;
  }

 private:
  static constexpr int kLine = 64, kSecondLevel = 2;
  const char* next_ = nullptr;
  int share_ = 0;
};

// The two ways for products of one kind.
class Fetching {
 public:
  // Returns whether the next product fetches.
  bool choose() {
    const int number = num_calls_.fetch_add(1, std::memory_order_relaxed);
    if (number < kTrials) return __builtin_parity(number);  // in no rhythm that layers may have
    num_calls_.store(kTrials, std::memory_order_relaxed);
    return nanoseconds_[1] * double(weights_[0]) < nanoseconds_[0] * double(weights_[1]);
  }

  void observe(bool fetches, int64_t num_weights, std::chrono::nanoseconds time) {
    if (num_calls_.load(std::memory_order_relaxed) >= kTrials) return;
    weights_[fetches].fetch_add(num_weights, std::memory_order_relaxed);
    nanoseconds_[fetches].fetch_add(time.count(), std::memory_order_relaxed);
  }

 private:
  static constexpr int kTrials = 512;  // products
  std::atomic<int> num_calls_{0};
  std::atomic<int64_t> weights_[2] = {}, nanoseconds_[2] = {};
};

// Calls `multiply(fetches)` for a product with so many weights.
template <class Multiply>
void with_fetching(Fetching& fetching, int64_t num_weights, Multiply multiply) {
  const bool fetches = fetching.choose();
  const auto begun = std::chrono::steady_clock::now();
  multiply(fetches);
  fetching.observe(fetches, num_weights, std::chrono::steady_clock::now() - begun);
}

}  // namespace kernels
