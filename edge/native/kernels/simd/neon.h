// NEON of AArch64: a Vec is four q registers, a Reg is two. See simd.h for what each name means.
#pragma once

#include <arm_neon.h>

#include "base.h"

namespace sparsyedge::kernels::neon {

// ---------------------------------------------------------------------------------------------------------------------
// Convolution. Of 32 q registers, the forward pass takes 16 for sums, up to 2 for weights and 14 for the source; the
// gradient of the weights takes 16 of dy, up to 12 sums and the rest for the source. Loads stand together ahead of
// their multiply-adds: an in-order core (Cortex-A53) waits wherever a load follows a multiply-add.

inline constexpr int kTilePositions = 4;
inline constexpr int kGradStack = 2;
inline constexpr int kBlockBytes = 18 * 1024;  // of 32 KiB
inline constexpr int kLoadAhead = 7;
inline constexpr int kSinglesAhead = 4;
inline constexpr int kBlockTokens = 64;

struct Reg {
  static constexpr int kWidth = 8;
  float32x4_t lo, hi;

  static SPARSYEDGE_INLINE Reg Zero() { return Set(0.0f); }
  static SPARSYEDGE_INLINE Reg Set(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static SPARSYEDGE_INLINE Reg Load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static SPARSYEDGE_INLINE Reg LoadOnce(const float* p) { return Load(p); }
  static SPARSYEDGE_INLINE Reg LoadInOrder(const float* p, int first) {
    Reg v;
    asm volatile("ldp %q0, %q1, [%2, %3]" : "=w"(v.lo), "=w"(v.hi) : "r"(p), "i"(first * 4));
    return v;
  }
  SPARSYEDGE_INLINE void Store(float* p) const {
    vst1q_f32(p, lo);
    vst1q_f32(p + 4, hi);
  }

  friend SPARSYEDGE_INLINE Reg operator+(Reg a, Reg b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }

  static SPARSYEDGE_INLINE Reg SumEach(const float* p) {
    float32x4_t half[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) half[i] = vaddq_f32(vld1q_f32(p + 8 * i), vld1q_f32(p + 8 * i + 4));
    return {vpaddq_f32(vpaddq_f32(half[0], half[1]), vpaddq_f32(half[2], half[3])),
            vpaddq_f32(vpaddq_f32(half[4], half[5]), vpaddq_f32(half[6], half[7]))};
  }
};

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }

// Instructions that stay in the order in which they are written. GCC would move loads until their values need more
// registers than there are.
SPARSYEDGE_INLINE Reg FmaInOrder(Reg a, Reg b, Reg c) {
  asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c.lo) : "w"(a.lo), "w"(b.lo));
  asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c.hi) : "w"(a.hi), "w"(b.hi));
  return c;
}

SPARSYEDGE_INLINE Reg MulInOrder(Reg a, Reg b) {
  Reg c;
  asm volatile("fmul %0.4s, %1.4s, %2.4s" : "=w"(c.lo) : "w"(a.lo), "w"(b.lo));
  asm volatile("fmul %0.4s, %1.4s, %2.4s" : "=w"(c.hi) : "w"(a.hi), "w"(b.hi));
  return c;
}

namespace internal {

template <int kLane>
SPARSYEDGE_INLINE void Multiply(float32x4_t w, Reg v, Reg& sum) {
  float32x4_t lo = sum.lo, hi = sum.hi;
  asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(lo) : "w"(v.lo), "w"(w), "i"(kLane));
  asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(hi) : "w"(v.hi), "w"(w), "i"(kLane));
  sum = {lo, hi};
}

}  // namespace internal

template <int kCount>
struct Weights {
  static_assert(kCount >= 1 && kCount <= 4);
  float32x4_t first;  // two, if there are three
  float32x4_t third;

  static SPARSYEDGE_INLINE Weights Load(const float* p) {
    Weights all;
    if constexpr (kCount == 1) asm volatile("ldr %s0, [%1]" : "=w"(all.first) : "r"(p));
    if constexpr (kCount == 2 || kCount == 3) {
      asm volatile("ldr %d0, [%1]" : "=w"(all.first) : "r"(p));
    }
    if constexpr (kCount == 3) asm volatile("ldr %s0, [%1, 8]" : "=w"(all.third) : "r"(p));
    if constexpr (kCount == 4) {
      asm volatile("ldr %q0, [%1]" : "=w"(all.first) : "r"(p));
    }
    return all;
  }
  SPARSYEDGE_INLINE void Add(int i, Reg v, Reg& sum) const {
    switch (i) {
      case 0: internal::Multiply<0>(first, v, sum); break;
      case 1: internal::Multiply<1>(first, v, sum); break;
      case 2: internal::Multiply<kCount == 3 ? 0 : 2>(kCount == 3 ? third : first, v, sum); break;
      default: internal::Multiply<3>(first, v, sum); break;
    }
  }
};

SPARSYEDGE_INLINE ptrdiff_t Settled(ptrdiff_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

SPARSYEDGE_INLINE void WillRead() { asm volatile("" ::: "memory"); }

SPARSYEDGE_INLINE float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[4], float* p) {
  float32x4_t half[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) half[i] = vaddq_f32(a[i].lo, a[i].hi);
  vst1q_f32(p, vpaddq_f32(vpaddq_f32(half[0], half[1]), vpaddq_f32(half[2], half[3])));
}

// Four squares of four rows and columns each.
SPARSYEDGE_INLINE void Transpose(const float* from, size_t from_pitch, float* to, size_t to_pitch) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const float* in = from + i / 2 * 4 * from_pitch + i % 2 * 4;
    float* out = to + i % 2 * 4 * to_pitch + i / 2 * 4;
    const float32x4_t a = vld1q_f32(in), b = vld1q_f32(in + from_pitch);
    const float32x4_t c = vld1q_f32(in + 2 * from_pitch), d = vld1q_f32(in + 3 * from_pitch);
    const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    const float64x2_t ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    const float64x2_t cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even)));
    vst1q_f32(out + to_pitch, vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)));
    vst1q_f32(out + 2 * to_pitch, vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even)));
    vst1q_f32(out + 3 * to_pitch, vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// One position

namespace internal {

SPARSYEDGE_INLINE LaneMask FourBits(uint32x4_t all_ones_or_zero) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(all_ones_or_zero, bits));
}

SPARSYEDGE_INLINE float32x4_t KeepFour(LaneMask mask, float32x4_t a) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vtstq_u32(vdupq_n_u32(mask), bits)));
}

SPARSYEDGE_INLINE LaneMask FourAbove(float32x4_t a, uint32_t key) {
  const uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(kMagnitudeBits));
  return FourBits(vcgtq_u32(bits, vdupq_n_u32(key)));
}

}  // namespace internal

struct Vec {
  float32x4_t q0, q1, q2, q3;

  static SPARSYEDGE_INLINE Vec Zero() { return Set(0.0f); }
  static SPARSYEDGE_INLINE Vec Set(float value) {
    const float32x4_t q = vdupq_n_f32(value);
    return {q, q, q, q};
  }
  static SPARSYEDGE_INLINE Vec Load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
  }
  SPARSYEDGE_INLINE void Store(float* p) const {
    vst1q_f32(p, q0);
    vst1q_f32(p + 4, q1);
    vst1q_f32(p + 8, q2);
    vst1q_f32(p + 12, q3);
  }

  friend SPARSYEDGE_INLINE Vec operator+(Vec a, Vec b) {
    return {vaddq_f32(a.q0, b.q0), vaddq_f32(a.q1, b.q1), vaddq_f32(a.q2, b.q2), vaddq_f32(a.q3, b.q3)};
  }
  friend SPARSYEDGE_INLINE Vec operator-(Vec a, Vec b) {
    return {vsubq_f32(a.q0, b.q0), vsubq_f32(a.q1, b.q1), vsubq_f32(a.q2, b.q2), vsubq_f32(a.q3, b.q3)};
  }
  friend SPARSYEDGE_INLINE Vec operator*(Vec a, Vec b) {
    return {vmulq_f32(a.q0, b.q0), vmulq_f32(a.q1, b.q1), vmulq_f32(a.q2, b.q2), vmulq_f32(a.q3, b.q3)};
  }
};

SPARSYEDGE_INLINE Vec Abs(Vec a) { return {vabsq_f32(a.q0), vabsq_f32(a.q1), vabsq_f32(a.q2), vabsq_f32(a.q3)}; }

SPARSYEDGE_INLINE Vec Min(Vec a, Vec b) {
  const auto min = [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); };
  return {min(a.q0, b.q0), min(a.q1, b.q1), min(a.q2, b.q2), min(a.q3, b.q3)};
}

SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  return {internal::KeepFour(mask, a.q0), internal::KeepFour(mask >> 4, a.q1), internal::KeepFour(mask >> 8, a.q2),
          internal::KeepFour(mask >> 12, a.q3)};
}

SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) {
  using internal::FourBits;
  const float32x4_t zero = vdupq_n_f32(0.0f);
  return ~(FourBits(vcleq_f32(a.q0, zero)) | FourBits(vcleq_f32(a.q1, zero)) << 4 |
           FourBits(vcleq_f32(a.q2, zero)) << 8 | FourBits(vcleq_f32(a.q3, zero)) << 12) &
         0xffff;
}

SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  using internal::FourAbove;
  return FourAbove(a.q0, key) | FourAbove(a.q1, key) << 4 | FourAbove(a.q2, key) << 8 | FourAbove(a.q3, key) << 12;
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

// Sixteen blocks of 4x4: pairs, then pairs of pairs.
SPARSYEDGE_INLINE void Transpose(const float* const (&from)[kLanes], float* const (&to)[kLanes]) {
  for (int block = 0; block < 16; ++block) {
    const int row = block / 4 * 4, column = block % 4 * 4;
    const float32x4_t a = vld1q_f32(from[row] + column), b = vld1q_f32(from[row + 1] + column);
    const float32x4_t c = vld1q_f32(from[row + 2] + column), d = vld1q_f32(from[row + 3] + column);
    const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    const float64x2_t ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    const float64x2_t cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    vst1q_f32(to[column] + row, vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even)));
    vst1q_f32(to[column + 1] + row, vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)));
    vst1q_f32(to[column + 2] + row, vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even)));
    vst1q_f32(to[column + 3] + row, vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Double precision. Two doubles fit a q register; the compiler puts them there by itself.

using DoubleVec = DoubleLoop;

}  // namespace sparsyedge::kernels::neon
