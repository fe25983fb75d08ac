// Weights fetched into the second-level cache before they are needed. Some processors read them faster
// so, others slower: see `trials.h`.

#pragma once

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

}  // namespace kernels
