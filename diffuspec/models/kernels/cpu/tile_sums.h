// The running softmax of attention by products of tiles: sixteen queries with a block of columns.

#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "tiles.h"
#include "vectors.h"

namespace kernels {

#if HAS_TILES

constexpr int kSize = 2;    // bytes of a bfloat16 number
constexpr int kPairs = 32;  // numbers in a line

// Sixteen queries, one in each lane, and their running softmax.
struct alignas(kLine) QueryTile {
  explicit QueryTile(int dim) : tiles(dim / kPairs * kTileRows), outputs(dim / kLanes * kTileRows) {
    std::fill_n(highest, kLanes, -kInfinity);
  }

  std::vector<Line> tiles;    // the second factor: [dim / 32, 16 pairs of numbers]
  std::vector<Line> outputs;  // [dim / 16, 16 queries], float32
  alignas(kLine) float highest[kLanes];
  alignas(kLine) float totals[kLanes] = {};
  // number of columns of the next block that a query sees
  alignas(kLine) int32_t ends[kLanes] = {};
};

// Transposes lines of 16 pairs of numbers into lines of one pair of each.
ON_TILES_INLINE void transpose(__m512i lines[kTileRows]) {
  __m512i interleaved[kTileRows];
  for (int half = kTileRows / 2; half; half /= 2) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int i = 0; i < kTileRows / 2; ++i) {
      interleaved[2 * i] = _mm512_permutex2var_epi32(lines[i], low, lines[i + kTileRows / 2]);
      interleaved[2 * i + 1] = _mm512_permutex2var_epi32(lines[i], high, lines[i + kTileRows / 2]);
    }
    std::copy(interleaved, interleaved + kTileRows, lines);
  }
}

// Interleaves pairs of rows of a block's values, [kBlock, dim], from pair `first` to before `end`,
// into the layout of a second factor, [dim / 16, kBlock / 32, 16 pairs of columns].
ON_TILES void pair_up(const char* values, int dim, int first, int end, Line* to);

// Adds a block of columns to the sums of 16 queries.
ON_TILES void add_block(
    QueryTile& queries, const char* keys, const Line* values, int dim, float scaling);

#endif

}  // namespace kernels
