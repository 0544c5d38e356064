// Reg: the lanes that the convolution kernels keep in one register tile, and the tile's size, which follows from the
// register file. AVX-512 takes all 16 lanes of a position. AVX2 and NEON take 8 at a time: 8 positions of all 16 lanes
// would need all their registers, and smaller tiles share less.
//
// Load may become the memory operand of every instruction that uses the value, which repeats the load; LoadOnce does
// not. GCC prefers the former, and it costs a fifth of the forward pass of a layer at half density.
#pragma once

#include "vec.h"

namespace sparsyedge::kernels::SPARSYEDGE_ISA {

#if defined(SPARSYEDGE_ISA_AVX512)
// ---------------------------------------------------------------------------------------------------------------------
// 32 zmm: 16 sums, 3 weights and a source vector for the forward pass; 16 of dy and up to 6 sums for the gradient

inline constexpr int kTilePositions = 16;
inline constexpr int kBlockBytes = 36 * 1024;  // of 48 KiB

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
  SPARSYEDGE_INLINE void Store(float* p) const { _mm512_storeu_ps(p, v); }
  friend SPARSYEDGE_INLINE Reg operator+(Reg a, Reg b) { return {_mm512_add_ps(a.v, b.v)}; }

  // The sums of 16 registers that lie at p one after the other: each step adds neighbours and halves their number.
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
      a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a[i], a[i + 4]),
                           _mm512_permutex2var_ps(a[i], fours, a[i + 4]));
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

#elif defined(SPARSYEDGE_ISA_AVX2)
// ---------------------------------------------------------------------------------------------------------------------
// 16 ymm: 8 sums, 3 weights and a source vector for the forward pass; 8 of dy and up to 6 sums for the gradient

inline constexpr int kTilePositions = 8;
inline constexpr int kBlockBytes = 22 * 1024;  // of 32 KiB

struct Reg {
  static constexpr int kWidth = 8;
  __m256 v;

  static SPARSYEDGE_INLINE Reg Zero() { return {_mm256_setzero_ps()}; }
  static SPARSYEDGE_INLINE Reg Set(float value) { return {_mm256_set1_ps(value)}; }
  static SPARSYEDGE_INLINE Reg Load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static SPARSYEDGE_INLINE Reg LoadOnce(const float* p) {
    __m256 v = _mm256_loadu_ps(p);
    asm("" : "+x"(v));
    return {v};
  }
  SPARSYEDGE_INLINE void Store(float* p) const { _mm256_storeu_ps(p, v); }
  friend SPARSYEDGE_INLINE Reg operator+(Reg a, Reg b) { return {_mm256_add_ps(a.v, b.v)}; }

  static SPARSYEDGE_INLINE Reg SumEach(const float* p) {
    __m256 pair[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) pair[i] = _mm256_hadd_ps(_mm256_loadu_ps(p + 16 * i), _mm256_loadu_ps(p + 16 * i + 8));
    const __m256 low = _mm256_hadd_ps(pair[0], pair[1]);   // four sums of four, once per half
    const __m256 high = _mm256_hadd_ps(pair[2], pair[3]);
    return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31))};
  }
};

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

#elif defined(SPARSYEDGE_ISA_NEON)
// ---------------------------------------------------------------------------------------------------------------------
// 32 q registers, two per Reg: 8 sums, 3 weights and a source vector

inline constexpr int kTilePositions = 8;
inline constexpr int kBlockBytes = 22 * 1024;  // of 32 KiB

struct Reg {
  static constexpr int kWidth = 8;
  float32x4_t lo, hi;

  static SPARSYEDGE_INLINE Reg Zero() { return Set(0.0f); }
  static SPARSYEDGE_INLINE Reg Set(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static SPARSYEDGE_INLINE Reg Load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static SPARSYEDGE_INLINE Reg LoadOnce(const float* p) { return Load(p); }
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

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) {
  return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}

#endif

}  // namespace sparsyedge::kernels::SPARSYEDGE_ISA
