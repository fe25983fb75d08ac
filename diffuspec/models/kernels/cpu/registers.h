// Functions compiled for several levels of processors.

#pragma once

#include "level.h"
#include "vectors.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ON_WIDE_REGISTERS __attribute__((target("arch=x86-64-v4"), noinline))
#define ON_NARROW_REGISTERS __attribute__((target("arch=x86-64-v3"), noinline))
#else
#define ON_WIDE_REGISTERS
#define ON_NARROW_REGISTERS
#endif

namespace kernels {

// The size of a register, and the numbers of rows and of groups of kLanes columns whose sums fit;
// kFusedRows: the most rows for which quantised weights are unpacked into registers only.
struct WideRegisters {
  static constexpr int kNumbers = 16, kRows = 6, kVectors = 4, kFusedRows = 12;
};

struct NarrowRegisters {
  static constexpr int kNumbers = 8, kRows = 3, kVectors = 2, kFusedRows = 3;
};

struct OtherRegisters {
  static constexpr int kNumbers = 4, kRows = 4, kVectors = 1, kFusedRows = 1;
};

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
