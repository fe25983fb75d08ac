// Products of float32 rows and columns whose sums stay in registers.
//
// Each sum is one chain of fused multiply-adds, from the first step to the last, whatever the
// registers' width and number, and whatever else is computed.

#pragma once

#include <cstdint>

#include "fetching.h"
#include "registers.h"
#include "vectors.h"

namespace kernels {

// Adds rows * columns to sums.
struct SmallProduct {
  const float* rows;  // [num_rows, num_steps]
  int64_t row_stride;
  const float* columns;  // vectors of kLanes columns, [num_vectors, num_steps, kLanes]
  int64_t vector_stride, step_stride;
  int num_steps;
  float* sums;  // [num_rows, num_vectors * kLanes]
  int64_t sum_stride;
  bool begins;                     // whether the sums start at 0
  const float* factors = nullptr;  // factors that rescale each row's sums first, or null
  Ahead ahead = {};                // fetched by the steps of the first rows and columns
};

// Computes N rows and V vectors of columns.
template <class Registers, int N, int V>
INLINE void multiply_tile(const SmallProduct& call, int row, int vector) {
  using Numbers = typename VectorOf<Registers::kNumbers>::Floats;
  constexpr int kParts = kLanes / Registers::kNumbers, kAll = V * kParts;
  const float* rows = call.rows + row * call.row_stride;
  const float* columns = call.columns + vector * call.vector_stride;
  float* to = call.sums + row * call.sum_stride + vector * kLanes;
  Numbers sums[N][kAll] = {};
  if (!call.begins) {
#pragma GCC unroll 6
    for (int i = 0; i < N; ++i) {
      const float factor = call.factors ? call.factors[row + i] : 1.f;
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v)
        sums[i][v] = factor * read<Numbers>(to + i * call.sum_stride + v * Registers::kNumbers);
    }
  }
  Ahead ahead = row == 0 && vector == 0 ? call.ahead : Ahead();
  for (int step = 0; step < call.num_steps; ++step, ++rows, columns += call.step_stride) {
    ahead.fetch();
    Numbers column[kAll];
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v)
      column[v] = read<Numbers>(
          columns + v / kParts * call.vector_stride + v % kParts * Registers::kNumbers);
#pragma GCC unroll 6
    for (int i = 0; i < N; ++i) {
      const float number = rows[i * call.row_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v) sums[i][v] = number * column[v] + sums[i][v];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v)
      write(to + i * call.sum_stride + v * Registers::kNumbers, sums[i][v]);
}

// Computes N rows, at most Registers::kRows.
template <class Registers, int N>
INLINE void multiply_few_rows(const SmallProduct& call, int row, int num_vectors) {
  int vector = 0;
  if constexpr (Registers::vectors(N) >= 4)
    for (; vector + 4 <= num_vectors; vector += 4)
      multiply_tile<Registers, N, 4>(call, row, vector);
  if constexpr (Registers::vectors(N) >= 2)
    for (; vector + 2 <= num_vectors; vector += 2)
      multiply_tile<Registers, N, 2>(call, row, vector);
  for (; vector < num_vectors; ++vector) multiply_tile<Registers, N, 1>(call, row, vector);
}

// Calls `compute(row, size)` for evenly sized groups of rows whose sums fill the registers; `size`
// is a compile-time constant.
template <class Registers, class Compute>
INLINE void for_each_few_rows(int num_rows, Compute compute) {
  for (int row = 0, size; row < num_rows; row += size) {
    const int left = num_rows - row;
    size = (left - 1) / ((left + Registers::kRows - 1) / Registers::kRows) + 1;
    switch (size) {
      case 6: if constexpr (Registers::kRows >= 6) compute(row, Count<6>()); break;
      case 5: if constexpr (Registers::kRows >= 5) compute(row, Count<5>()); break;
      case 4: if constexpr (Registers::kRows >= 4) compute(row, Count<4>()); break;
      case 3: if constexpr (Registers::kRows >= 3) compute(row, Count<3>()); break;
      case 2: compute(row, Count<2>()); break;
      case 1: compute(row, Count<1>()); break;
    }
  }
}

template <class Registers>
INLINE void multiply_rows(const SmallProduct& call, int num_rows, int num_vectors) {
  for_each_few_rows<Registers>(num_rows, [&](int row, auto size) __attribute__((always_inline)) {
    multiply_few_rows<Registers, decltype(size)::value>(call, row, num_vectors);
  });
}

}  // namespace kernels
