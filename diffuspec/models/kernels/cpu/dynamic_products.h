// Products of quantised weights with quantised rows (dynamic quantisation): integers are multiplied
// and added, exactly and in any order; each run of inputs has one scale for each row.

#pragma once

#include <memory>

#include "quantized_products.h"

namespace kernels {

// Rows in which each run of inputs is scaled so that its largest magnitude becomes 127.
class QuantizedRows : public PartRows {
 public:
  QuantizedRows(const Part& part, const float* inputs, const Product& call);

  // Four numbers per word, in the order of the weights' words: for 4 bits, first the even numbers
  // of every eight, then the odd ones.
  const int32_t* words(int row) const { return words_.get() + row * num_words_; }
  const float* scales(int row) const { return &scales_[size_t(row) * num_runs_]; }
  // sums of the numbers of each run
  const int32_t* sums(int row) const { return &sums_[size_t(row) * num_runs_]; }

  bool fits(const Part& part) const override { return part.bits == bits_ && run_of(part) == run; }

  // Adds the runs in order, whatever the other rows, to the same bits on every processor.
  void add(const Part& part, int block, const Product& call, float* sums) const override;

  const int run;  // number of inputs; a group has one or more runs

 private:
  static int run_of(const Part& part);

  const int bits_;
  const int64_t num_words_, num_runs_;
  const std::unique_ptr<int32_t[]> words_, sums_;
  const std::unique_ptr<float[]> scales_;
};

}  // namespace kernels
