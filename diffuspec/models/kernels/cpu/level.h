// The level of instruction sets used for products.

#pragma once

// Whether dot products of 8-bit numbers on aarch64 can be compiled, and the attribute of functions with
// them. Clang has them where all functions do.
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define HAS_DOTS 1
#define ON_DOTS
#elif defined(__aarch64__) && !defined(__clang__)
#define HAS_DOTS 1
#define ON_DOTS __attribute__((target("arch=armv8.2-a+dotprod")))
#else
#define HAS_DOTS 0
#endif

namespace kernels {

enum Level {
  kPlain = 0,   // what every processor of its architecture has
  kDots = 1,    // aarch64 with dot products
  kNarrow = 3,  // x86-64-v3: AVX2, FMA and F16C
  kWide = 4,    // x86-64-v4 with VNNI
  kTiled = 5,   // AMX
};

Level own_level();  // the highest level of this machine
Level level();      // the level in use: the machine's own, or a lower one
void use_level(Level lower);

bool has_tiles();
bool has_bfloat16_vectors();  // wide vectors that multiply bfloat16

}  // namespace kernels
