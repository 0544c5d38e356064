// Vec: the 16 floats of one position of a lanes tensor, in the registers of one instruction set.
//
// Kernels are written once, over Vec, in *.inc files. Each instruction set compiles them in a file of its own, with its
// own compiler flags, inside a namespace of its own name:
//
//   #define SPARSYEDGE_ISA avx2     // names the namespace and picks the Vec below
//   #define SPARSYEDGE_ISA_AVX2 1
//   #include "table.inc"            // includes every *.inc and defines the table of function pointers
//
// Code in a *.inc file must not instantiate templates or inline functions of the standard library: the linker keeps a
// single copy of those for the whole library, and it might keep the one with instructions that this CPU lacks.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(SPARSYEDGE_ISA_AVX512) || defined(SPARSYEDGE_ISA_AVX2)
#include <immintrin.h>
#elif defined(SPARSYEDGE_ISA_NEON)
#include <arm_neon.h>
#endif

#define SPARSYEDGE_INLINE inline __attribute__((always_inline))

namespace sparsyedge::kernels {

inline constexpr int kLanes = 16;

namespace SPARSYEDGE_ISA {

// One bit per lane, lane 0 lowest.
using LaneMask = uint32_t;

#if defined(SPARSYEDGE_ISA_AVX512)
// ---------------------------------------------------------------------------------------------------------------------
// AVX-512 (F, BW, DQ, VL): one zmm

struct Vec {
  __m512 v;

  static SPARSYEDGE_INLINE Vec Zero() { return {_mm512_setzero_ps()}; }
  static SPARSYEDGE_INLINE Vec Set(float value) { return {_mm512_set1_ps(value)}; }
  static SPARSYEDGE_INLINE Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  SPARSYEDGE_INLINE void Store(float* p) const { _mm512_storeu_ps(p, v); }

  friend SPARSYEDGE_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend SPARSYEDGE_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend SPARSYEDGE_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
};

SPARSYEDGE_INLINE Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
SPARSYEDGE_INLINE Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
SPARSYEDGE_INLINE Vec Abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
SPARSYEDGE_INLINE LaneMask Greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  return {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), a.v)};
}
SPARSYEDGE_INLINE int CountLanes(LaneMask mask) { return __builtin_popcount(mask); }

// The lanes of `mask` take consecutive floats from p, the others are 0. Reads no float beyond those.
SPARSYEDGE_INLINE Vec ExpandLoad(LaneMask mask, const float* p) {
  return {_mm512_maskz_expandloadu_ps(static_cast<__mmask16>(mask), p)};
}

#elif defined(SPARSYEDGE_ISA_AVX2)
// ---------------------------------------------------------------------------------------------------------------------
// AVX2 with FMA: two ymm

struct Vec {
  __m256 lo, hi;

  static SPARSYEDGE_INLINE Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static SPARSYEDGE_INLINE Vec Set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static SPARSYEDGE_INLINE Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  SPARSYEDGE_INLINE void Store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }

  friend SPARSYEDGE_INLINE Vec operator+(Vec a, Vec b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  friend SPARSYEDGE_INLINE Vec operator-(Vec a, Vec b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  friend SPARSYEDGE_INLINE Vec operator*(Vec a, Vec b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
};

SPARSYEDGE_INLINE Vec Fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SPARSYEDGE_INLINE Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
SPARSYEDGE_INLINE Vec Abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
SPARSYEDGE_INLINE LaneMask Greater(Vec a, Vec b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
  return static_cast<LaneMask>(lo | hi << 8);
}
SPARSYEDGE_INLINE __m256 KeepEight(LaneMask mask, __m256 a) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits);
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bits)));
}
SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) { return {KeepEight(mask, a.lo), KeepEight(mask >> 8, a.hi)}; }
SPARSYEDGE_INLINE int CountLanes(LaneMask mask) { return __builtin_popcount(mask); }

// For each mask of 8 lanes, which of the packed floats a lane takes.
struct ExpandTable {
  uint8_t source[256][8] = {};
  constexpr ExpandTable() {
    for (int mask = 0; mask < 256; ++mask) {
      for (int lane = 0, next = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) source[mask][lane] = static_cast<uint8_t>(next++);
      }
    }
  }
};
inline constexpr ExpandTable kExpandTable{};

SPARSYEDGE_INLINE __m256 ExpandEight(LaneMask mask, const float* p) {
  const __m256i count = _mm256_set1_epi32(CountLanes(mask));
  const __m256i packed = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const auto* row = reinterpret_cast<const __m128i*>(kExpandTable.source[mask]);
  const __m256i source = _mm256_cvtepu8_epi32(_mm_loadl_epi64(row));
  return KeepEight(mask, _mm256_permutevar8x32_ps(_mm256_maskload_ps(p, packed), source));
}

// The lanes of `mask` take consecutive floats from p, the others are 0. Reads no float beyond those.
SPARSYEDGE_INLINE Vec ExpandLoad(LaneMask mask, const float* p) {
  return {ExpandEight(mask & 0xff, p), ExpandEight(mask >> 8, p + CountLanes(mask & 0xff))};
}

#elif defined(SPARSYEDGE_ISA_NEON)
// ---------------------------------------------------------------------------------------------------------------------
// NEON of AArch64: four q registers

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

SPARSYEDGE_INLINE Vec Fma(Vec a, Vec b, Vec c) {
  return {vfmaq_f32(c.q0, a.q0, b.q0), vfmaq_f32(c.q1, a.q1, b.q1), vfmaq_f32(c.q2, a.q2, b.q2),
          vfmaq_f32(c.q3, a.q3, b.q3)};
}
SPARSYEDGE_INLINE Vec Max(Vec a, Vec b) {
  return {vmaxq_f32(a.q0, b.q0), vmaxq_f32(a.q1, b.q1), vmaxq_f32(a.q2, b.q2), vmaxq_f32(a.q3, b.q3)};
}
SPARSYEDGE_INLINE Vec Abs(Vec a) { return {vabsq_f32(a.q0), vabsq_f32(a.q1), vabsq_f32(a.q2), vabsq_f32(a.q3)}; }
SPARSYEDGE_INLINE LaneMask FourBits(uint32x4_t all_ones_or_zero) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(all_ones_or_zero, bits));
}
SPARSYEDGE_INLINE LaneMask Greater(Vec a, Vec b) {
  return FourBits(vcgtq_f32(a.q0, b.q0)) | FourBits(vcgtq_f32(a.q1, b.q1)) << 4 | FourBits(vcgtq_f32(a.q2, b.q2)) << 8 |
         FourBits(vcgtq_f32(a.q3, b.q3)) << 12;
}
SPARSYEDGE_INLINE float32x4_t KeepFour(LaneMask mask, float32x4_t a) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vtstq_u32(vdupq_n_u32(mask), bits)));
}
SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  return {KeepFour(mask, a.q0), KeepFour(mask >> 4, a.q1), KeepFour(mask >> 8, a.q2), KeepFour(mask >> 12, a.q3)};
}
SPARSYEDGE_INLINE int CountLanes(LaneMask mask) { return __builtin_popcount(mask); }

#else
// ---------------------------------------------------------------------------------------------------------------------
// Scalar, the oracle: plain loops in the order of the lanes

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

SPARSYEDGE_INLINE Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }
SPARSYEDGE_INLINE Vec Max(Vec a, Vec b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
SPARSYEDGE_INLINE Vec Abs(Vec a) {
  for (float& lane : a.v) lane = __builtin_fabsf(lane);
  return a;
}
SPARSYEDGE_INLINE LaneMask Greater(Vec a, Vec b) {
  LaneMask mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<LaneMask>(a.v[i] > b.v[i]) << i;
  return mask;
}
SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = mask >> i & 1 ? a.v[i] : 0.0f;
  return a;
}
SPARSYEDGE_INLINE int CountLanes(LaneMask mask) { return __builtin_popcount(mask); }

#endif

// ---------------------------------------------------------------------------------------------------------------------
// The same code for every instruction set

#if !defined(SPARSYEDGE_ISA_AVX512) && !defined(SPARSYEDGE_ISA_AVX2)
SPARSYEDGE_INLINE Vec ExpandLoad(LaneMask mask, const float* p) {
  float lanes[kLanes] = {};
  for (; mask != 0; mask &= mask - 1) lanes[__builtin_ctz(mask)] = *p++;
  return Vec::Load(lanes);
}
#endif

// The sum of all lanes, by halves: as accurate as a pairwise sum.
SPARSYEDGE_INLINE float Sum(Vec a) {
  float lanes[kLanes];
  a.Store(lanes);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace SPARSYEDGE_ISA
}  // namespace sparsyedge::kernels
