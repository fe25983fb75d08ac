// Products of quantised weights with rows that are quantised, too (dynamic quantisation): whole numbers
// are multiplied and added, exactly and in any order; each run of inputs has one scale for each row.

#pragma once

#include <vector>

#include "quantized_products.h"

namespace kernels {

// Rows of which each run of inputs is divided so that its largest number becomes 127.
class QuantizedRows {
 public:
  QuantizedRows(const Part& part, const float* inputs, const Product& call);

  // Four numbers each, in the order of the weights' words: of those of 4 bits, every other number of
  // eight first, and then those between.
  const int32_t* words(int row) const { return words_.data() + row * num_words_; }
  const float* scales(int row) const { return &scales_[size_t(row) * num_runs_]; }
  const int32_t* sums(int row) const { return &sums_[size_t(row) * num_runs_]; }  // of the numbers

  // Whether a part reads rows as they are here.
  bool fits(const Part& part) const { return part.bits == bits_ && run_of(part) == run; }

  const int run;  // inputs; a group has one or more

 private:
  static int run_of(const Part& part);

  const int bits_;
  const int64_t num_words_, num_runs_;
  std::vector<int32_t> words_, sums_;
  Numbers scales_;
};

// Adds up all inputs of rows with a block of a part's outputs; sums are [num_rows, 64]. A row's sums
// take the runs one by one, whatever rows are beside it, with the same bits on every processor.
void add_quantized_rows(
    const Part& part, int block, const QuantizedRows& rows, const Product& call, float* sums);

}  // namespace kernels
