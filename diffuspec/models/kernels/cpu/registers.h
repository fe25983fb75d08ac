// Functions compiled for several levels of processors.

#pragma once

#include "level.h"
#include "vectors.h"

#if defined(__x86_64__)
#define ON_WIDE_REGISTERS __attribute__((target("arch=x86-64-v4"), noinline))
#define ON_NARROW_REGISTERS __attribute__((target("arch=x86-64-v3"), noinline))
#else
#define ON_WIDE_REGISTERS
#define ON_NARROW_REGISTERS
#endif

namespace kernels {

// The size of a register; the most rows whose sums fit, and with how many groups of kLanes columns
// those of some rows do; and the most rows for which quantised weights are unpacked into registers
// only, with how many vectors of outputs.
struct OtherRegisters {
  static constexpr int kNumbers = 4, kRows = 4, kFusedRows = 1;
  static constexpr int vectors(int) { return 1; }
  static constexpr int fused_vectors(int) { return 4; }
};

#if defined(__x86_64__)
struct WideRegisters {
  static constexpr int kNumbers = 16, kRows = 6, kFusedRows = 12;
  static constexpr int vectors(int) { return 4; }
  static constexpr int fused_vectors(int num_rows) { return num_rows <= 4 ? 4 : 2; }
};

struct NarrowRegisters {
  static constexpr int kNumbers = 8, kRows = 6, kFusedRows = 8;
  static constexpr int vectors(int num_rows) { return num_rows <= 3 ? 2 : 1; }
  static constexpr int fused_vectors(int num_rows) {
    return num_rows == 1 ? 4 : num_rows <= 4 ? 2 : 1;
  }
};
#else
using WideRegisters = OtherRegisters;  // there is one level
using NarrowRegisters = OtherRegisters;
#endif

// Returns the one of three functions that is compiled for the level in use.
template <class Function>
Function* fitting(Function* wide, Function* narrow, Function* other) {
  return level() >= kWide ? wide : level() >= kNarrow ? narrow : other;
}

template <class Body>
ON_WIDE_REGISTERS void run_wide(const Body& body) { body(); }
template <class Body>
ON_NARROW_REGISTERS void run_narrow(const Body& body) { body(); }
template <class Body>
void run_other(const Body& body) { body(); }

// Runs a loop, which ALWAYS_INLINE must mark, compiled for the level in use.
template <class Body>
void on_level(const Body& body) {
  fitting(run_wide<Body>, run_narrow<Body>, run_other<Body>)(body);
}

}  // namespace kernels
