#include "products.h"

#include "level.h"
#include "quantized_products.h"
#include "tile_products.h"
#include "trials.h"
#include "vector_products.h"

namespace kernels {
namespace {

constexpr int kMostRows = 256;  // at a time, so that they stay in the second-level cache
// Rows of each thread from which on threads divide the rows, and not the blocks of outputs, of which a
// small matrix has too few to divide them evenly. Each thread then reads all weights.
constexpr int kWorthAThread = 128;
constexpr int kFewRows = 16;  // Products of more have time to fetch, and do.
constexpr int64_t kWorthFetching = 1 << 18;  // weights
constexpr int kSizes = 27;  // doublings of multiplications, below 2^27: larger products are divided always

void multiply_some(const Type& type, const Product& call, int num_threads) {
  if (call.matrix.num_parts) multiply_quantized(type, call, num_threads);
  else if (&type == &kTypes[kBfloat16] && has_tiles()) multiply_by_tiles(call, num_threads);
  else if (level() >= kWide) multiply_by_wide_vectors(type, call, num_threads);
  else if (level() >= kNarrow) multiply_by_narrow_vectors(type, call, num_threads);
  else multiply_by_neon_vectors(type, call, num_threads);
}

// Products are of one row or of few, with weights that are quantised or not.
Trials fetchings[2][2];
// Of products by doublings of their multiplications: to wake other threads takes longer than to compute
// a small product alone, on some machines a hundred times as long as on others.
Trials threadings[2][kSizes];

void multiply_in_threads(const Type& type, const Product& call, int num_threads) {
  if (num_threads == 1) return multiply_some(type, call, 1);
  const Matrix& matrix = call.matrix;
  const int64_t size = int64_t{matrix.num_inputs} * matrix.num_outputs * call.num_rows;
  const int doublings = 63 - __builtin_clzll(size | 1);
  if (doublings >= kSizes) return multiply_some(type, call, num_threads);
  threadings[matrix.num_parts > 0][doublings].run(size, [&](bool in_threads) {
    multiply_some(type, call, in_threads ? num_threads : 1);
  });
}

void multiply_fetching(const Type& type, Product call, int num_threads) {
  const Matrix& matrix = call.matrix;
  const int64_t num_weights = int64_t{matrix.num_inputs} * matrix.num_outputs;
  call.fetches = call.num_rows > kFewRows;
  if (call.fetches || num_weights < kWorthFetching) 
    return multiply_in_threads(type, call, num_threads);
  fetchings[matrix.num_parts > 0][call.num_rows > 1].run(num_weights, [&](bool fetches) {
    call.fetches = fetches;
    multiply_in_threads(type, call, num_threads);
  });
}

}  // namespace

void multiply(const Type& type, const Product& call, int num_threads) {
  int num_parts = (call.num_rows + kMostRows - 1) / kMostRows;
  const bool divides_rows = num_threads > 1 && call.num_rows >= num_threads * kWorthAThread;
  if (divides_rows) num_parts = (num_parts + num_threads - 1) / num_threads * num_threads;
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
