// Tiles of AMX: eight registers of 16 lines of 64 bytes, and products of them.

#pragma once

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 12)
#define HAS_TILES 1
#include <immintrin.h>
#define ON_TILES \
  __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512f,avx512bw,avx512vl,avx512bf16")))
#define ON_TILES_INLINE ON_TILES inline __attribute__((always_inline))
#else
#define HAS_TILES 0
#endif

#include <cstdint>

namespace kernels {

// Whether the processor has tiles and the system lets this process use them.
bool can_use_tiles();

#if HAS_TILES

constexpr int kTileRows = 16;
constexpr int kLine = 64;  // bytes of a line
constexpr int kTileBytes = kTileRows * kLine;

struct alignas(kLine) Line { char bytes[kLine]; };

// Call this before loading tiles from memory that was just written: GCC does not know that tile
// loads read memory.
ON_TILES_INLINE void settle() { asm volatile("" ::: "memory"); }

// Configures the tiles: lines of 64 bytes, num_rows of them in tiles 0 to 5 and 16 in tiles 6 and
// 7.
ON_TILES void shape_tiles(int num_rows);

#endif

}  // namespace kernels
