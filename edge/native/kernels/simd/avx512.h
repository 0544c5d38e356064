// AVX-512 (F, BW, DQ, VL): a Vec is one zmm, and so is a Reg. See simd.h for what each name means.
#pragma once

#include <immintrin.h>

#include "base.h"

namespace sparsyedge::kernels::avx512 {

// ---------------------------------------------------------------------------------------------------------------------
// Convolution. Of 32 zmm, the forward pass takes 16 sums, 3 weights and a source vector; the gradient of the weights
// takes 16 of dy and up to 6 sums.

inline constexpr int kTilePositions = 16;
inline constexpr int kGradStack = 1;
inline constexpr int kBlockBytes = 36 * 1024;  // of 48 KiB
inline constexpr int kLoadAhead = 1;
inline constexpr int kSinglesAhead = 1;
inline constexpr int kBlockTokens = 128;

struct Reg {
  static constexpr int kWidth = 16;
  __m512 v;

  static SPARSYEDGE_INLINE Reg Zero() { return {_mm512_setzero_ps()}; }
  static SPARSYEDGE_INLINE Reg Set(float value) { return {_mm512_set1_ps(value)}; }
  static SPARSYEDGE_INLINE Reg Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static SPARSYEDGE_INLINE Reg LoadOnce(const float* p) {
    __m512 v = _mm512_loadu_ps(p);
    asm("" : "+v"(v));
    return {v};
  }
  static SPARSYEDGE_INLINE Reg LoadInOrder(const float* p, int first) { return LoadOnce(p + first); }
  SPARSYEDGE_INLINE void Store(float* p) const { _mm512_storeu_ps(p, v); }

  friend SPARSYEDGE_INLINE Reg operator+(Reg a, Reg b) { return {_mm512_add_ps(a.v, b.v)}; }

  // Each step adds neighbours and halves the number of registers.
  static SPARSYEDGE_INLINE Reg SumEach(const float* p) {
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(p + 16 * i);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a[i], a[i + 8]), _mm512_shuffle_f32x4(a[i], a[i + 8], 0x4e));
    }
    const __m512i fours = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a[i], a[i + 4]), _mm512_permutex2var_ps(a[i], fours, a[i + 4]));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a[i], a[i + 2]), _mm512_shuffle_ps(a[i], a[i + 2], 0x4e));
    }
    const __m512i ones = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    return {_mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a[0], a[1]), _mm512_permutex2var_ps(a[0], ones, a[1]))};
  }
};

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

SPARSYEDGE_INLINE Reg FmaInOrder(Reg a, Reg b, Reg c) { return Fma(a, b, c); }
SPARSYEDGE_INLINE Reg MulInOrder(Reg a, Reg b) { return {_mm512_mul_ps(a.v, b.v)}; }

template <int kCount>
struct Weights {
  Reg w[kCount];

  static SPARSYEDGE_INLINE Weights Load(const float* p) {
    Weights all;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) all.w[i] = Reg::Set(p[i]);
    return all;
  }
  SPARSYEDGE_INLINE void Add(int i, Reg v, Reg& sum) const { sum = Fma(w[i], v, sum); }
};

SPARSYEDGE_INLINE ptrdiff_t Settled(ptrdiff_t value) { return value; }
SPARSYEDGE_INLINE void WillRead() {}

SPARSYEDGE_INLINE float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[4], float* p) {
  const auto halve = [](__m512 x, __m512 y) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, x, y), _mm512_shuffle_ps(x, y, 0x4e));
  };
  const __m512 low = halve(a[0].v, a[1].v), high = halve(a[2].v, a[3].v);
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
}

// Pairs of rows, then of pairs, inside the four quarters of a register; then the quarters change places.
SPARSYEDGE_INLINE void Transpose(const float* from, size_t from_pitch, float* to, size_t to_pitch) {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * from_pitch);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(to + i * to_pitch, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_ps(to + (i + 4) * to_pitch, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_ps(to + (i + 8) * to_pitch, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
    _mm512_storeu_ps(to + (i + 12) * to_pitch, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// One position

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

SPARSYEDGE_INLINE Vec Abs(Vec a) { return {_mm512_abs_ps(a.v)}; }

SPARSYEDGE_INLINE Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }

SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  return {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), a.v)};
}

SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) { return _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NLE_UQ); }

SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(kMagnitudeBits));
  return _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(static_cast<int>(key)));
}

SPARSYEDGE_INLINE Vec ExpandLoad(LaneMask mask, const float* p) {
  return {_mm512_maskz_expandloadu_ps(static_cast<__mmask16>(mask), p)};
}

// Compressing in a register and storing it whole is several times faster than a compressing store.
SPARSYEDGE_INLINE void Pack(LaneMask mask, Vec a, float* p) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v));
}

// Pairs, then fours within 128 bits, then the 128-bit quarters of four registers.
SPARSYEDGE_INLINE void Transpose(const float* const (&from)[kLanes], float* const (&to)[kLanes]) {
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const __m512 even = _mm512_loadu_ps(from[i]), odd = _mm512_loadu_ps(from[i + 1]);
    a[i] = _mm512_unpacklo_ps(even, odd);
    a[i + 1] = _mm512_unpackhi_ps(even, odd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d p[4] = {_mm512_castps_pd(a[i]), _mm512_castps_pd(a[i + 1]), _mm512_castps_pd(a[i + 2]),
                          _mm512_castps_pd(a[i + 3])};
    b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p[0], p[2]));
    b[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p[0], p[2]));
    b[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(p[1], p[3]));
    b[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(p[1], p[3]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 even = _mm512_shuffle_f32x4(b[i], b[4 + i], 0x88), odd = _mm512_shuffle_f32x4(b[i], b[4 + i], 0xdd);
    const __m512 more = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0x88);
    const __m512 most = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0xdd);
    _mm512_storeu_ps(to[i], _mm512_shuffle_f32x4(even, more, 0x88));
    _mm512_storeu_ps(to[4 + i], _mm512_shuffle_f32x4(odd, most, 0x88));
    _mm512_storeu_ps(to[8 + i], _mm512_shuffle_f32x4(even, more, 0xdd));
    _mm512_storeu_ps(to[12 + i], _mm512_shuffle_f32x4(odd, most, 0xdd));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Double precision

struct DoubleVec {
  __m512d lo, hi;

  static SPARSYEDGE_INLINE DoubleVec Load(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
  // GCC 12 warns about an uninitialised value inside the plain form of this conversion, but not the masked one.
  static SPARSYEDGE_INLINE DoubleVec Load(const float* p) {
    return {_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(p)), _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(p + 8))};
  }
  SPARSYEDGE_INLINE void Store(double* p) const {
    _mm512_storeu_pd(p, lo);
    _mm512_storeu_pd(p + 8, hi);
  }

  friend SPARSYEDGE_INLINE DoubleVec operator+(DoubleVec a, DoubleVec b) {
    return {_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)};
  }
  friend SPARSYEDGE_INLINE DoubleVec operator*(DoubleVec a, DoubleVec b) {
    return {_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)};
  }
};

}  // namespace sparsyedge::kernels::avx512
