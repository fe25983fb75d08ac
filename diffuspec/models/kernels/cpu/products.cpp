#include "products.h"

#include "level.h"
#include "quantized_products.h"
#include "tile_products.h"
#include "trials.h"
#include "vector_products.h"

namespace kernels {
namespace {

constexpr int kMostRows = 256;  // rows at a time, so that they stay in the second-level cache
// From this number of rows per thread on, threads divide the rows rather than the blocks of
// outputs, of which a small matrix has too few for an even division. Each thread then reads all
// weights.
constexpr int kWorthAThread = 128;
constexpr int kFewRows = 16;  // products of more rows have time to prefetch, and always do
constexpr int64_t kWorthFetching = 1 << 18;  // weights that are worth prefetching
// powers of two of the number of multiplications, below 2^27: larger products are always divided
constexpr int kSizes = 27;

void multiply_some(const Type& type, const Product& call, int num_threads) {
  if (call.matrix.num_parts) multiply_quantized(type, call, num_threads);
  else if (&type == &kTypes[kBfloat16] && has_tiles()) multiply_by_tiles(call, num_threads);
  else if (level() >= kWide) multiply_by_wide_vectors(type, call, num_threads);
  else if (level() >= kNarrow) multiply_by_narrow_vectors(type, call, num_threads);
  else if (level() >= kDots) multiply_by_dots(type, call, num_threads);
  else multiply_by_plain_vectors(type, call, num_threads);
}

// Kinds of weights, which are computed at different speeds.
enum Kind { kWhole, kInt8, kQuantised, kNumKinds };

Kind kind_of(const Matrix& matrix) {
  return matrix.num_parts ? kQuantised : matrix.scales ? kInt8 : kWhole;
}

// Indexed by the number of rows: while memory takes longer than sums, a processor may fetch best by
// itself; from some number of rows on it does not.
Trials fetchings[kNumKinds][kFewRows + 1];
// Indexed by the power of two of the number of multiplications. Waking other threads takes longer
// than computing a small product, on some machines a hundred times as long as on others.
Trials threadings[kNumKinds][kSizes];

void multiply_in_threads(const Type& type, const Product& call, int num_threads) {
  if (num_threads == 1) return multiply_some(type, call, 1);
  const Matrix& matrix = call.matrix;
  const int64_t size = int64_t{matrix.num_inputs} * matrix.num_outputs * call.num_rows;
  const int doublings = 63 - __builtin_clzll(size | 1);
  if (doublings >= kSizes) return multiply_some(type, call, num_threads);
  threadings[kind_of(matrix)][doublings].run(size, [&](bool in_threads) {
    multiply_some(type, call, in_threads ? num_threads : 1);
  });
}

void multiply_fetching(const Type& type, Product call, int num_threads) {
  const Matrix& matrix = call.matrix;
  const int64_t num_weights = int64_t{matrix.num_inputs} * matrix.num_outputs;
  call.fetches = call.num_rows > kFewRows;
  if (call.fetches || num_weights < kWorthFetching)
    return multiply_in_threads(type, call, num_threads);
  Trials& trials = fetchings[kind_of(matrix)][call.num_rows];
  if (!trials.are_over()) num_threads = 1;  // one trial at a time: their results would mix
  trials.run(num_weights, [&](bool fetches) {
    call.fetches = fetches;
    multiply_in_threads(type, call, num_threads);
  });
}

}  // namespace

void multiply(const Type& type, const Product& call, int num_threads) {
  int num_parts = divided_up(call.num_rows, kMostRows);
  const bool divides_rows = num_threads > 1 && call.num_rows >= num_threads * kWorthAThread;
  if (divides_rows) num_parts = divided_up(num_parts, num_threads) * num_threads;
#pragma omp parallel for num_threads(num_threads) if (divides_rows)
  for (int part = 0; part < num_parts; ++part) {
    const int64_t first = int64_t{call.num_rows} * part / num_parts;
    const int64_t end = int64_t{call.num_rows} * (part + 1) / num_parts;
    multiply_fetching(
        type, {call.matrix, at(call.inputs, type, first * call.matrix.num_inputs),
               at(call.outputs, type, first * call.matrix.num_outputs), int(end - first)},
        divides_rows ? 1 : num_threads);
  }
}

}  // namespace kernels
