#include "tile_sums.h"

namespace kernels {

#if HAS_TILES

namespace {

// Computes the scores of 16 queries for a block; line c is column c.
ON_TILES_INLINE void score(const QueryTile& queries, const char* keys, int dim, Line* scores) {
  settle();
  for (int tile = 0; tile < kBlock / kTileRows; ++tile) {
    _tile_zero(0);
    for (int part = 0; part < dim / kPairs; ++part) {
      _tile_loadd(4, keys + (int64_t{tile} * kTileRows * dim + part * kPairs) * kSize, dim * kSize);
      _tile_loadd(6, &queries.tiles[part * kTileRows], kLine);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, scores + tile * kTileRows, kLine);
  }
}

// 2^x, with an error of a hundredth of bfloat16's resolution; exactly 1 for 0.
ON_TILES_INLINE __m512 power_of_two(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
  const __m512 rest = _mm512_sub_ps(x, whole);  // Taylor series of 2^rest
  __m512 sum = _mm512_set1_ps(0.0096181291f);
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.0555041087f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.2402265070f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.6931471806f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(sum, whole);
}

// Turns a block's scores into rounded weights in place, laid out as the first factor, [kBlock / 32,
// 16 queries, 32 columns]. Returns the factor that rescales the earlier sums.
ON_TILES_INLINE __m512 weigh(QueryTile& queries, float scaling, Line* scores) {
  const __m512i ends = _mm512_load_si512(queries.ends);
  // weights are computed as powers of two
  const __m512 factor = _mm512_set1_ps(scaling * 1.44269504f);
  const __m512 nothing = _mm512_set1_ps(-kInfinity), before = _mm512_load_ps(queries.highest);
  __m512 highest = before;
  for (int column = 0; column < kBlock; ++column) {
    const __mmask16 seen = _mm512_cmpgt_epi32_mask(ends, _mm512_set1_epi32(column));
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(&scores[column]), factor);
    const __m512 found = _mm512_mask_blend_ps(seen, nothing, scaled);
    highest = _mm512_max_ps(highest, found);
    _mm512_store_ps(&scores[column], found);
  }
  const __mmask16 is_empty = _mm512_cmp_ps_mask(highest, nothing, _CMP_EQ_OQ);
  const __m512 offset = _mm512_mask_blend_ps(is_empty, highest, _mm512_setzero_ps());
  __m512 total = _mm512_setzero_ps();
  __m512i lines[kTileRows];
  for (int part = 0; part < kBlock / kPairs; ++part) {
    for (int i = 0; i < kTileRows; ++i) {
      __m512i halves[2];
      for (int odd = 0; odd < 2; ++odd) {
        const __m512 scored = _mm512_load_ps(&scores[part * kPairs + 2 * i + odd]);
        const __mmask16 seen = _mm512_cmp_ps_mask(scored, nothing, _CMP_NEQ_UQ);
        const __m512 weight = power_of_two(_mm512_sub_ps(scored, offset));
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_mov_ps(seen, weight));
        halves[odd] = _mm512_cvtepu16_epi32(rounded);
        total = _mm512_add_ps(total, (__m512)_mm512_slli_epi32(halves[odd], 16));
      }
      lines[i] = _mm512_or_si512(halves[0], _mm512_slli_epi32(halves[1], 16));
    }
    transpose(lines);
    for (int i = 0; i < kTileRows; ++i)
      _mm512_store_si512(&scores[part * kTileRows + i], lines[i]);
  }
  const __mmask16 had_any = _mm512_cmp_ps_mask(before, nothing, _CMP_NEQ_UQ);
  const __m512 shrink =
      _mm512_maskz_mov_ps(had_any, power_of_two(_mm512_sub_ps(before, offset)));
  _mm512_store_ps(queries.highest, highest);
  _mm512_store_ps(
      queries.totals,
      _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(queries.totals), shrink), total));
  return shrink;
}

ON_TILES_INLINE void shrink_outputs(QueryTile& queries, __m512 shrink) {
  if (_mm512_cmp_ps_mask(shrink, _mm512_set1_ps(1.f), _CMP_EQ_OQ) == 0xffff) return;
  alignas(kLine) float factors[kLanes];
  _mm512_store_ps(factors, shrink);
  for (size_t i = 0; i < queries.outputs.size(); ++i) {
    Line* sums = &queries.outputs[i];
    const __m512 factor = _mm512_set1_ps(factors[i % kTileRows]);
    _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), factor));
  }
}

}  // namespace

ON_TILES void pair_up(const char* values, int dim, int first, int end, Line* to) {
  for (int pair = first; pair < end; ++pair)
    for (int part = 0; part < dim / kLanes; ++part) {
      const char* from = values + (int64_t{2} * pair * dim + part * kLanes) * kSize;
      const auto* even = reinterpret_cast<const __m256i*>(from);
      const auto* odd = reinterpret_cast<const __m256i*>(from + dim * kSize);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(even));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(odd));
      const int half = part * kBlock / kPairs + pair / kTileRows;
      _mm512_store_si512(
          &to[half * kTileRows + pair % kTileRows],
          _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

ON_TILES void add_block(
    QueryTile& queries, const char* keys, const Line* values, int dim, float scaling) {
  Line scores[kBlock];
  score(queries, keys, dim, scores);
  shrink_outputs(queries, weigh(queries, scaling, scores));
  settle();
  for (int part = 0; part < dim / kLanes; ++part) {
    Line* sums = &queries.outputs[part * kTileRows];
    _tile_loadd(0, sums, kLine);
    for (int half = 0; half < kBlock / kPairs; ++half) {
      _tile_loadd(4, &scores[half * kTileRows], kLine);
      _tile_loadd(6, &values[(part * kBlock / kPairs + half) * kTileRows], kLine);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums, kLine);
  }
}

#endif

}  // namespace kernels
