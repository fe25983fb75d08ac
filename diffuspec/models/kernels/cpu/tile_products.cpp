#include "tile_products.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tiles.h"

namespace kernels {

#if HAS_TILES
namespace {

constexpr int kLanes = 16;
constexpr int kBlock = 2 * kLanes;  // outputs computed together
constexpr int kAhead = 4096;        // distance in bytes of prefetching

// The rows as tiles, [blocks of 16 rows, steps, 16 lines]; in int8 each row is divided by a scale.
struct Rows {
  Rows(const Product& call, int numbers_per_line)
      : num_blocks(divided_up(call.num_rows, kTileRows)),
        num_steps(divided_up(call.matrix.num_inputs, numbers_per_line)),
        lines(size_t(num_blocks) * num_steps * kTileRows), scales(num_blocks * kTileRows) {}

  Line& line(int row, int step) {
    return lines[(size_t(row / kTileRows) * num_steps + step) * kTileRows + row % kTileRows];
  }
  const Line* tile(int block, int step) const {
    return &lines[(size_t(block) * num_steps + step) * kTileRows];
  }

  const int num_blocks, num_steps;
  std::vector<Line> lines;
  std::vector<float> scales;
};

Rows bfloat16_rows(const Product& call) {
  Rows rows(call, kLine / 2);
  for (int row = 0; row < call.num_rows; ++row) {
    const int width = 2 * call.matrix.num_inputs;
    const char* numbers = call.inputs + int64_t{row} * width;
    for (int step = 0, at = 0; step < rows.num_steps; ++step, at += kLine)
      std::memcpy(&rows.line(row, step), numbers + at, std::min(kLine, width - at));
  }
  return rows;
}

// Scales each row so that its largest magnitude becomes 127; the scale of a row that is not finite
// is NaN.
ON_TILES Rows int8_rows(const Product& call) {
  Rows rows(call, kLine);
  std::vector<float> numbers(size_t(rows.num_steps) * kLine);
  for (int row = 0; row < call.num_rows; ++row) {
    const char* inputs = call.inputs + int64_t{row} * 2 * call.matrix.num_inputs;
    for (int i = 0; i < call.matrix.num_inputs; ++i) {
      uint16_t half;
      std::memcpy(&half, inputs + 2 * i, sizeof half);
      const uint32_t bits = uint32_t{half} << 16;
      std::memcpy(&numbers[i], &bits, sizeof bits);
    }
    __m512 largest = _mm512_setzero_ps(), rest = largest;
    for (size_t i = 0; i < numbers.size(); i += kLanes) {
      const __m512 found = _mm512_loadu_ps(&numbers[i]);
      largest = _mm512_max_ps(_mm512_abs_ps(found), largest);
      rest = _mm512_fmadd_ps(found, _mm512_setzero_ps(), rest);  // NaN if any is not finite
    }
    const float magnitude = _mm512_reduce_max_ps(largest) + _mm512_reduce_add_ps(rest);
    rows.scales[row] = magnitude / 127.f;
    const __m512 factor = _mm512_set1_ps(magnitude > 0.f ? 127.f / magnitude : 0.f);
    for (int step = 0; step < rows.num_steps; ++step)
      for (int i = 0; i < kLine; i += kLanes) {
        const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(&numbers[step * kLine + i]), factor);
        const __m128i narrow = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(scaled));
        std::memcpy(&rows.line(row, step).bytes[i], &narrow, sizeof narrow);
      }
  }
  return rows;
}

using Sums = Line[4 * kTileRows];  // for a block of 16 or 32 rows; int32 if weights are int8

// Multiplies one or two blocks of 16 rows with a block of weights, using four tiles of sums (0 to
// 3), two of rows (4, 5) and two of weights (6, 7).
template <bool is_int8, bool has_two>
ON_TILES_INLINE void add_up(
    const Rows& rows, int block, const char* weights, Sums& sums) {
  _tile_zero(0);
  _tile_zero(1);
  if (has_two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int step = 0; step < rows.num_steps; ++step, weights += 2 * kTileBytes) {
    if (block == 0)  // the other blocks find the weights in the cache
      for (int i = 0; i < 2 * kTileBytes; i += kLine) _mm_prefetch(weights + kAhead + i, _MM_HINT_T0);
    _tile_loadd(4, rows.tile(block, step), kLine);
    if (has_two) _tile_loadd(5, rows.tile(block + 1, step), kLine);
    _tile_loadd(6, weights, kLine);
    _tile_loadd(7, weights + kTileBytes, kLine);
    if (is_int8) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (has_two && is_int8) {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    } else if (has_two) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, &sums[0], kLine);
  _tile_stored(1, &sums[kTileRows], kLine);
  if (has_two) {
    _tile_stored(2, &sums[2 * kTileRows], kLine);
    _tile_stored(3, &sums[3 * kTileRows], kLine);
  }
}

// Writes the outputs from `first` on for a block of 16 rows.
template <bool is_int8>
ON_TILES void write(const Product& call, const Rows& rows, int block, int first, const Line* sums) {
  const int first_row = block * kTileRows;
  const int num_rows = std::min(kTileRows, call.num_rows - first_row);
  for (int column = first; column < std::min(first + kBlock, call.matrix.num_outputs); column += kLanes) {
    const int count = std::min(kLanes, call.matrix.num_outputs - column);
    const __mmask16 mask = (1u << count) - 1;
    const __m512 bias = _mm512_loadu_ps(call.matrix.biases + column);
    const __m512 scale = is_int8 ? _mm512_loadu_ps(call.matrix.scales + column) : _mm512_setzero_ps();
    const Line* line = sums + (column - first) / kLanes * kTileRows;
    for (int i = 0; i < num_rows; ++i, ++line) {
      __m512 sum;
      if (is_int8) {
        sum = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(line)), scale);
        sum = _mm512_mul_ps(sum, _mm512_set1_ps(rows.scales[first_row + i]));
      } else {
        sum = _mm512_load_ps(line);
      }
      const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(sum, bias));
      char* to = call.outputs + 2 * ((int64_t{first_row} + i) * call.matrix.num_outputs + column);
      _mm256_mask_storeu_epi16(to, mask, rounded);
    }
  }
}

template <bool is_int8>
ON_TILES void multiply_blocks(const Product& call, const Rows& rows, int begin, int end) {
  Sums sums;
  settle();
  shape_tiles(std::min(kTileRows, call.num_rows));
  for (int n = begin; n < end; ++n) {
    const char* weights = call.matrix.weights + int64_t{n} * rows.num_steps * 2 * kTileBytes;
    for (int block = 0; block < rows.num_blocks; block += 2) {
      const bool has_two = block + 1 < rows.num_blocks;
      if (has_two) add_up<is_int8, true>(rows, block, weights, sums);
      else add_up<is_int8, false>(rows, block, weights, sums);
      write<is_int8>(call, rows, block, n * kBlock, sums);
      if (has_two) write<is_int8>(call, rows, block + 1, n * kBlock, sums + 2 * kTileRows);
    }
  }
  _tile_release();
}

template <bool is_int8>
void multiply_rows(const Product& call, const Rows& rows, int num_threads) {
  const int num_blocks = divided_up(call.matrix.num_outputs, kBlock);
  const int num_parts = useful_threads(call.matrix, num_threads);
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1)
  for (int part = 0; part < num_parts; ++part)
    multiply_blocks<is_int8>(
        call, rows, num_blocks * part / num_parts, num_blocks * (part + 1) / num_parts);
}

}  // namespace

void multiply_by_tiles(const Product& call, int num_threads) {
  if (call.matrix.scales) multiply_rows<true>(call, int8_rows(call), num_threads);
  else multiply_rows<false>(call, bfloat16_rows(call), num_threads);
}

#else

void multiply_by_tiles(const Product&, int) {}

#endif

}  // namespace kernels
