// What every simd/<isa>.h builds on.
#pragma once

#include <cstddef>
#include <cstdint>

#define SPARSYEDGE_INLINE inline __attribute__((always_inline))

namespace sparsyedge::kernels {

inline constexpr int kLanes = 16;

// One bit per lane, lane 0 lowest.
using LaneMask = uint32_t;

SPARSYEDGE_INLINE int CountLanes(LaneMask mask) { return __builtin_popcount(mask); }

// Clears the sign of a float's bits. The rest, read as an integer, sorts like the magnitude, with NaN above infinity.
inline constexpr uint32_t kMagnitudeBits = 0x7fffffff;

// ---------------------------------------------------------------------------------------------------------------------
// Plain loops, for instruction sets that have nothing better

SPARSYEDGE_INLINE void ExpandByLoop(LaneMask mask, const float* p, float (&lanes)[kLanes]) {
  for (; mask != 0; mask &= mask - 1) lanes[__builtin_ctz(mask)] = *p++;
}

// Writes every lane and overwrites those not in `mask` with the next one: no branch to mispredict.
SPARSYEDGE_INLINE void PackByLoop(LaneMask mask, const float (&lanes)[kLanes], float* p) {
  for (int i = 0; i < kLanes; ++i) {
    *p = lanes[i];
    p += mask >> i & 1;
  }
}

struct DoubleLoop {
  double v[kLanes];

  static SPARSYEDGE_INLINE DoubleLoop Load(const double* p) {
    DoubleLoop r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  static SPARSYEDGE_INLINE DoubleLoop Load(const float* p) {
    DoubleLoop r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  SPARSYEDGE_INLINE void Store(double* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  friend SPARSYEDGE_INLINE DoubleLoop operator+(DoubleLoop a, DoubleLoop b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
    return a;
  }
  friend SPARSYEDGE_INLINE DoubleLoop operator*(DoubleLoop a, DoubleLoop b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
    return a;
  }
};

}  // namespace sparsyedge::kernels
