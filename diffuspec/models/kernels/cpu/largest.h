// The largest numbers of rows, and their log-probabilities under softmax.

#pragma once

#include <cstdint>

namespace kernels {

struct Largest {
  const float* logits;  // [num_rows, width]
  int32_t* columns;     // columns of each row's largest numbers, [num_rows, count], largest first
  float* logprobs;      // [num_rows, count]
  int num_rows, width, count;  // count: at most width
};

// Of equal numbers the first comes first. Rows with NaN, or without a finite number, give NaN.
void find_largest(const Largest& call);

}  // namespace kernels
