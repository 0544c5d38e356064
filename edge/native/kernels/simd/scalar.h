// Plain loops over the lanes: what each name of simd.h means, and what runs where there is no other instruction set.
#pragma once

#include "base.h"

namespace sparsyedge::kernels::scalar {

// ---------------------------------------------------------------------------------------------------------------------
// Convolution. conv_scalar.inc works on one position at a time and needs no Reg; tests/native/simd_check.cc holds the
// other headers against this one.

inline constexpr int kTilePositions = 1;
inline constexpr int kGradStack = 1;
inline constexpr int kBlockBytes = 22 * 1024;
inline constexpr int kLoadAhead = 1;
inline constexpr int kSinglesAhead = 1;
inline constexpr int kBlockTokens = 64;

struct Reg {
  static constexpr int kWidth = kLanes;
  float v[kWidth];

  static SPARSYEDGE_INLINE Reg Zero() { return Set(0.0f); }
  static SPARSYEDGE_INLINE Reg Set(float value) {
    Reg r;
    for (float& lane : r.v) lane = value;
    return r;
  }
  static SPARSYEDGE_INLINE Reg Load(const float* p) {
    Reg r;
    for (int i = 0; i < kWidth; ++i) r.v[i] = p[i];
    return r;
  }
  static SPARSYEDGE_INLINE Reg LoadOnce(const float* p) { return Load(p); }
  static SPARSYEDGE_INLINE Reg LoadInOrder(const float* p, int first) { return Load(p + first); }
  SPARSYEDGE_INLINE void Store(float* p) const {
    for (int i = 0; i < kWidth; ++i) p[i] = v[i];
  }

  friend SPARSYEDGE_INLINE Reg operator+(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i) a.v[i] += b.v[i];
    return a;
  }

  static SPARSYEDGE_INLINE Reg SumEach(const float* p) {
    Reg r = Zero();
    for (int i = 0; i < kWidth * kWidth; ++i) r.v[i / kWidth] += p[i];
    return r;
  }
};

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) {
  for (int i = 0; i < Reg::kWidth; ++i) c.v[i] += a.v[i] * b.v[i];
  return c;
}

SPARSYEDGE_INLINE Reg FmaInOrder(Reg a, Reg b, Reg c) { return Fma(a, b, c); }
SPARSYEDGE_INLINE Reg MulInOrder(Reg a, Reg b) { return Fma(a, b, Reg::Zero()); }

template <int kCount>
struct Weights {
  Reg w[kCount];

  static SPARSYEDGE_INLINE Weights Load(const float* p) {
    Weights all;
    for (int i = 0; i < kCount; ++i) all.w[i] = Reg::Set(p[i]);
    return all;
  }
  SPARSYEDGE_INLINE void Add(int i, Reg v, Reg& sum) const { sum = Fma(w[i], v, sum); }
};

SPARSYEDGE_INLINE ptrdiff_t Settled(ptrdiff_t value) { return value; }
SPARSYEDGE_INLINE void WillRead() {}

SPARSYEDGE_INLINE float Fma(float a, float b, float c) { return a * b + c; }

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[4], float* p) {
  for (int i = 0; i < 4; ++i) {
    p[i] = 0.0f;
    for (const float lane : a[i].v) p[i] += lane;
  }
}

SPARSYEDGE_INLINE void Transpose(const float* from, size_t from_pitch, float* to, size_t to_pitch) {
  for (size_t i = 0; i < Reg::kWidth; ++i) {
    for (size_t j = 0; j < Reg::kWidth; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// One position

struct Vec {
  float v[kLanes];

  static SPARSYEDGE_INLINE Vec Zero() { return Set(0.0f); }
  static SPARSYEDGE_INLINE Vec Set(float value) {
    Vec r;
    for (float& lane : r.v) lane = value;
    return r;
  }
  static SPARSYEDGE_INLINE Vec Load(const float* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  SPARSYEDGE_INLINE void Store(float* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }

  friend SPARSYEDGE_INLINE Vec operator+(Vec a, Vec b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
    return a;
  }
  friend SPARSYEDGE_INLINE Vec operator-(Vec a, Vec b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] -= b.v[i];
    return a;
  }
  friend SPARSYEDGE_INLINE Vec operator*(Vec a, Vec b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
    return a;
  }
};

SPARSYEDGE_INLINE Vec Abs(Vec a) {
  for (float& lane : a.v) lane = __builtin_fabsf(lane);
  return a;
}

SPARSYEDGE_INLINE Vec Min(Vec a, Vec b) {
  for (int i = 0; i < kLanes; ++i) b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return b;
}

SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = mask >> i & 1 ? a.v[i] : 0.0f;
  return a;
}

SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) {
  LaneMask mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<LaneMask>(!(a.v[i] <= 0.0f)) << i;
  return mask;
}

SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  uint32_t bits[kLanes];
  __builtin_memcpy(bits, a.v, sizeof(bits));
  LaneMask mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<LaneMask>((bits[i] & kMagnitudeBits) > key) << i;
  return mask;
}

SPARSYEDGE_INLINE Vec ExpandLoad(LaneMask mask, const float* p) {
  float lanes[kLanes] = {};
  ExpandByLoop(mask, p, lanes);
  return Vec::Load(lanes);
}

SPARSYEDGE_INLINE void Pack(LaneMask mask, Vec a, float* p) {
  float lanes[kLanes];
  a.Store(lanes);
  PackByLoop(mask, lanes, p);
}

SPARSYEDGE_INLINE void Transpose(const float* const (&from)[kLanes], float* const (&to)[kLanes]) {
  for (int row = 0; row < kLanes; ++row) {
    for (int column = 0; column < kLanes; ++column) to[column][row] = from[row][column];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Double precision

using DoubleVec = DoubleLoop;

}  // namespace sparsyedge::kernels::scalar
