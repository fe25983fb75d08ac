#include "level.h"

#include <atomic>

#include "tiles.h"

namespace kernels {

namespace {

Level find_level() {
#if defined(__aarch64__)
  return kNeon;
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (can_use_tiles()) return kTiled;
  if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni")) return kWide;
  if (__builtin_cpu_supports("x86-64-v3")) return kNarrow;
#endif
  return kNoProducts;
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

bool has_vectors() { return level() >= kNeon; }

bool has_bfloat16_vectors() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  static const bool found = __builtin_cpu_supports("avx512bf16");
  return found && level() >= kWide;
#else
  return false;
#endif
}

}  // namespace kernels
