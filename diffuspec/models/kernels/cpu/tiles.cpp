#include "tiles.h"

#if HAS_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kernels {

#if HAS_TILES

namespace {

bool is_able() {
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 30 | 1u << 31;       // F, BW, VL
  constexpr unsigned kTileUnits = 1u << 22 | 1u << 24 | 1u << 25;  // bfloat16, tiles, int8
  constexpr unsigned kRounding = 1u << 5;                            // AVX512-BF16
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if ((ebx & kAvx512) != kAvx512 || (edx & kTileUnits) != kTileUnits) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kRounding);
}

// Linux grants tile state only to processes that request it.
bool is_allowed() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

bool can_use_tiles() { return is_able() && is_allowed(); }

ON_TILES void shape_tiles(int num_rows) {
  struct alignas(kLine) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t line_bytes[16] = {};
    uint8_t num_lines[16] = {};
  } shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.line_bytes[tile] = kLine;
    shapes.num_lines[tile] = tile < 6 ? num_rows : kTileRows;
  }
  settle();
  _tile_loadconfig(&shapes);
}

#else

bool can_use_tiles() { return false; }

#endif

}  // namespace kernels
