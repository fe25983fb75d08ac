#include "block_sums.h"

#include <algorithm>
#include <cstring>

#include "columns.h"
#include "small_products.h"

namespace kernels {
namespace {

static_assert(kBlock == 4 * kLanes);

// Masks of visible columns in a block: starting at kSeen[kBlock - n], all but the first n; starting
// at kSeen[2 * kBlock - n], only the first n.
const std::vector<int32_t> kSeen = [] {
  std::vector<int32_t> seen(3 * kBlock, 0);
  std::fill_n(&seen[kBlock], kBlock, -1);
  return seen;
}();

// The numbers where all bits of `first` and `last` are set, elsewhere -infinity, even for NaN.
template <class Vector>
INLINE Vector where_seen(Vector numbers, const int32_t* first, const int32_t* last) {
  using Bits = decltype(numbers < numbers);
  const Bits seen = read<Bits>(first) & read<Bits>(last), nothing = Bits{} + int32_t(0xff800000);
  const Bits bits = (read<Bits>(&numbers) & seen) | (nothing & ~seen);
  return read<Vector>(&bits);
}

// Scales a query's scores, sets -infinity for columns that it does not see, and updates its
// maximum.
template <class Registers>
INLINE void find_highest(BlockSums& sums, int query, int num_scores, float scaling, float* scores) {
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  constexpr int kParts = kLanes / Registers::kNumbers;
  const int first = sums.first[query], end = sums.end[query];
  const bool sees_all = first == 0 && end >= num_scores;
  Vector largest[kParts];
  for (int p = 0; p < kParts; ++p) largest[p] = Vector{} - kInfinity;
  for (int i = 0; i < num_scores; i += kLanes)
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const int place = i + p * Registers::kNumbers;
      Vector score = read<Vector>(scores + place) * scaling;
      if (!sees_all)
        score = where_seen(score, &kSeen[kBlock + place - first], &kSeen[2 * kBlock + place - end]);
      write(scores + place, score);
      largest[p] = larger(score, largest[p]);
    }
  sums.highest[query] = std::max(sums.highest[query], largest_of(largest));
}

// Turns a query's scores into weights, and returns their sum.
template <class Registers>
INLINE float weigh(float* scores, int num_scores, float offset) {
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  constexpr int kParts = kLanes / Registers::kNumbers;
  Vector totals[kParts] = {};
  for (int i = 0; i < num_scores; i += kLanes)
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      float* place = scores + i + p * Registers::kNumbers;
      const Vector weight = exponential_up_to_88(read<Vector>(place) - offset);
      write(place, weight);
      totals[p] += weight;
    }
  return sum_of(totals);
}

// Turns the scores of N queries, [N, kBlock], into weights and adds them to their totals. Writes
// the factors by which the queries' earlier sums shrink.
template <class Registers, int N>
INLINE void weigh_rows(
    BlockSums& sums, int query, int num_scores, float scaling, float scores[][kBlock],
    float* shrink) {
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  float before[Registers::kNumbers] = {}, offsets[Registers::kNumbers] = {};
  for (int i = 0; i < N; ++i) {
    before[i] = sums.highest[query + i];
    find_highest<Registers>(sums, query + i, num_scores, scaling, scores[i]);
    const float highest = sums.highest[query + i];
    offsets[i] = highest == -kInfinity ? 0.f : highest;
  }
  write(shrink, exponential(read<Vector>(before) - read<Vector>(offsets)));
  for (int i = 0; i < N; ++i) {
    const float total = weigh<Registers>(scores[i], num_scores, offsets[i]);
    sums.totals[query + i] = sums.totals[query + i] * shrink[i] + total;
  }
}

// Adds the weighted values of a block's columns to the outputs of N queries.
template <class Registers, int N>
INLINE void add_values(
    BlockSums& sums, int query, const float weights[][kBlock], const float* shrink,
    const float* values, const Next& next) {
  // all queries see columns from `first` to before `shared`, except for windows
  int first = kBlock, shared = kBlock;
  for (int i = 0; i < N; ++i) {
    first = std::min(first, sums.first[query + i]);
    shared = std::min(shared, sums.end[query + i]);
  }
  shared = std::max(first, shared);
  const int stride = sums.stride, num_vectors = stride / kLanes;
  float* outputs = &sums.outputs[size_t(query) * stride];
  SmallProduct call{
      &weights[0][first], kBlock, values + int64_t{first} * stride, kLanes, stride, shared - first,
      outputs, stride, false, shrink, Ahead(next.values, next.num_bytes, shared - first)};
  multiply_few_rows<Registers, N>(call, 0, num_vectors);
  for (int i = 0; i < N; ++i) {  // invisible columns must have no effect, even if they are NaN
    const int end = sums.end[query + i];
    if (end <= shared) continue;
    SmallProduct rest{
        &weights[i][shared], kBlock, values + int64_t{shared} * stride, kLanes, stride, end - shared,
        outputs + i * stride, stride, false};
    multiply_few_rows<Registers, 1>(rest, 0, num_vectors);
  }
}

// Adds a block's columns to the sums of queries.
template <class Registers>
INLINE void add_block(
    BlockSums& sums, int first, int count, const float* keys, const float* values, float scaling,
    const Next& all_next) {
  for_each_few_rows<Registers>(count, [&](int place, auto size) __attribute__((always_inline)) {
    constexpr int N = decltype(size)::value;
    const int query = first + place, dim = sums.dim, stride = sums.stride;
    const Next next = place == 0 ? all_next : Next();
    const int num_seen = *std::max_element(&sums.end[query], &sums.end[query] + N);
    const int num_scores = padded(num_seen);
    float weights[N][kBlock], shrink[Registers::kNumbers];
    const SmallProduct scores{
        &sums.queries[size_t(query) * stride], stride, keys, int64_t{dim} * kLanes, kLanes, dim,
        weights[0], kBlock, true, nullptr, Ahead(next.keys, next.num_bytes, dim)};
    multiply_few_rows<Registers, N>(scores, 0, num_scores / kLanes);
    weigh_rows<Registers, N>(sums, query, num_scores, scaling, weights, shrink);
    add_values<Registers, N>(sums, query, weights, shrink, values, next);
  });
}

ON_WIDE_REGISTERS void add_wide(
    BlockSums& sums, int query, int count, const float* keys, const float* values, float scaling,
    const Next& next) {
  add_block<WideRegisters>(sums, query, count, keys, values, scaling, next);
}

ON_NARROW_REGISTERS void add_narrow(
    BlockSums& sums, int query, int count, const float* keys, const float* values, float scaling,
    const Next& next) {
  add_block<NarrowRegisters>(sums, query, count, keys, values, scaling, next);
}

void add_other(
    BlockSums& sums, int query, int count, const float* keys, const float* values, float scaling,
    const Next& next) {
  add_block<OtherRegisters>(sums, query, count, keys, values, scaling, next);
}

}  // namespace

void BlockSums::reset(int count, int width) {
  dim = width;
  stride = padded(dim);
  queries.assign(static_cast<size_t>(count) * stride, 0.f);
  outputs.assign(queries.size(), 0.f);
  highest.assign(count, -kInfinity);
  totals.assign(count, 0.f);
  first.resize(count);
  end.resize(count);
}

void BlockSums::add(
    int query, int count, const float* keys, const float* values, float scaling, const Next& next) {
  fitting(add_wide, add_narrow, add_other)(*this, query, count, keys, values, scaling, next);
}

}  // namespace kernels
