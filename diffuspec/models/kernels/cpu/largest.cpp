#include "largest.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "numbers.h"
#include "registers.h"

namespace kernels {
namespace {

constexpr int kColumns = 4 * kLanes;  // a group whose maximum tells whether to look at each number

// A row as whole blocks of kColumns numbers.
struct Blocks {
  int count;
  const float* row;
  const float* last;  // the last block, padded with -infinity

  const float* at(int block) const { return block + 1 < count ? row + block * kColumns : last; }
};

// Writes each block's largest number, and returns the row's.
template <class Registers>
INLINE float find_highest(const Blocks& blocks, float* highest) {
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  constexpr int kParts = kLanes / Registers::kNumbers;
  for (int b = 0; b < blocks.count; ++b) {
    const float* from = blocks.at(b);
    Vector found[kParts];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) found[p] = read<Vector>(from + p * Registers::kNumbers);
    for (int i = kLanes; i < kColumns; i += kLanes)
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p)
        found[p] = larger(read<Vector>(from + i + p * Registers::kNumbers), found[p]);
    highest[b] = largest_of(found);
  }
  return *std::max_element(highest, highest + blocks.count);
}

// Returns the sum of e^(number - highest); NaN if any number is NaN.
template <class Registers>
INLINE float sum_up(const Blocks& blocks, float highest) {
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  constexpr int kParts = kLanes / Registers::kNumbers, kAll = kColumns / Registers::kNumbers;
  Vector sums[kAll] = {};
  for (int b = 0; b < blocks.count; ++b) {
    const float* from = blocks.at(b);
#pragma GCC unroll 16
    for (int i = 0; i < kAll; ++i)
      sums[i] += exponential(read<Vector>(from + i * Registers::kNumbers) - highest);
  }
  Vector found[kParts];
  for (int p = 0; p < kParts; ++p)
    found[p] = (sums[p] + sums[p + kParts]) + (sums[p + 2 * kParts] + sums[p + 3 * kParts]);
  return sum_of(found);
}

ON_WIDE_REGISTERS float find_wide(const Blocks& blocks, float* highest) {
  return find_highest<WideRegisters>(blocks, highest);
}
ON_NARROW_REGISTERS float find_narrow(const Blocks& blocks, float* highest) {
  return find_highest<NarrowRegisters>(blocks, highest);
}
float find_other(const Blocks& blocks, float* highest) {
  return find_highest<OtherRegisters>(blocks, highest);
}

ON_WIDE_REGISTERS float sum_wide(const Blocks& blocks, float highest) {
  return sum_up<WideRegisters>(blocks, highest);
}
ON_NARROW_REGISTERS float sum_narrow(const Blocks& blocks, float highest) {
  return sum_up<NarrowRegisters>(blocks, highest);
}
float sum_other(const Blocks& blocks, float highest) {
  return sum_up<OtherRegisters>(blocks, highest);
}

// Returns a threshold that at least `count` numbers of the row reach.
float reached_by(int count, const Numbers& highest) {
  if (count > static_cast<int>(highest.size())) return -kInfinity;
  Numbers sorted(highest);
  std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<>());
  return sorted[count - 1];
}

// The largest numbers so far, largest first, and their columns.
class Best {
 public:
  Best(int room, float* numbers, int32_t* columns)
      : room_(room), numbers_(numbers), columns_(columns) {}

  void take(float number, int32_t column) {
    if (count_ == room_ && !(number > numbers_[count_ - 1])) return;
    int place = count_ < room_ ? count_++ : count_ - 1;
    for (; place > 0 && number > numbers_[place - 1]; --place) {
      numbers_[place] = numbers_[place - 1];
      columns_[place] = columns_[place - 1];
    }
    numbers_[place] = number;
    columns_[place] = column;
  }

 private:
  const int room_;
  int count_ = 0;
  float* numbers_;
  int32_t* columns_;
};

}  // namespace

void find_largest(const Largest& call) {
  const int num_blocks = divided_up(call.width, kColumns);
  const int num_before = (num_blocks - 1) * kColumns;
  Numbers highest(num_blocks), last(kColumns, -kInfinity);
  for (int row = 0; row < call.num_rows; ++row) {
    const float* logits = call.logits + int64_t{row} * call.width;
    float* logprobs = call.logprobs + int64_t{row} * call.count;
    int32_t* columns = call.columns + int64_t{row} * call.count;
    std::copy(logits + num_before, logits + call.width, last.data());
    const Blocks blocks{num_blocks, logits, last.data()};
    const float most = fitting(find_wide, find_narrow, find_other)(blocks, highest.data());
    const float sum = fitting(sum_wide, sum_narrow, sum_other)(blocks, most);
    const float log_sum = std::log(sum) + most;
    if (std::isnan(log_sum)) {
      std::fill_n(logprobs, call.count, log_sum);
      std::iota(columns, columns + call.count, 0);
      continue;
    }
    const float least = reached_by(call.count, highest);
    Best best(call.count, logprobs, columns);
    for (int b = 0; b < num_blocks; ++b) {
      if (highest[b] < least) continue;
      const int first = b * kColumns, end = std::min(first + kColumns, call.width);
      for (int column = first; column < end; ++column)
        if (logits[column] >= least) best.take(logits[column], column);
    }
    for (int i = 0; i < call.count; ++i) logprobs[i] -= log_sum;
  }
}

}  // namespace kernels
