// The level of instruction sets used for products.

#pragma once

namespace kernels {

enum Level {
  kPlain = 0,   // what every processor of its architecture has
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
