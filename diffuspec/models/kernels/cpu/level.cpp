#include "level.h"

#include <atomic>

#include "tiles.h"

#if HAS_DOTS && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kernels {

namespace {

Level find_level() {
#if HAS_DOTS && defined(__ARM_FEATURE_DOTPROD)
  return kDots;
#elif HAS_DOTS && defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? kDots : kPlain;
#elif defined(__x86_64__)
  if (can_use_tiles()) return kTiled;
  // by their parts, for Clang does not know the names of levels; F16C comes with AVX2
  const bool is_narrow = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                         __builtin_cpu_supports("bmi2");
  const bool is_wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (is_narrow && is_wide && __builtin_cpu_supports("avx512vnni")) return kWide;
  if (is_narrow) return kNarrow;
#endif
  return kPlain;
}

std::atomic<Level> lower_level{kTiled};

}  // namespace

Level own_level() {
  static const Level found = find_level();
  return found;
}

Level level() {
  const Level lower = lower_level.load(std::memory_order_relaxed);
  return lower < own_level() ? lower : own_level();
}

void use_level(Level lower) { lower_level = lower; }

bool has_tiles() { return level() >= kTiled; }

bool has_bfloat16_vectors() {
#if defined(__x86_64__)
  static const bool found = __builtin_cpu_supports("avx512bf16");
  return found && level() >= kWide;
#else
  return false;
#endif
}

}  // namespace kernels
