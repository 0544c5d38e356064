// Reg: one register of the convolution kernels. Per instruction set:
//
//   kTilePositions   how many positions of a tile the register file holds. The 16 lanes of a position are one Reg with
//                    AVX-512 and two with AVX2 and NEON. Tiles of twice the positions and half the lanes share loads
//                    among as many multiply-adds, but need more of the source in L1
//   kGradStack       how many tiles, 1 or 2, the gradient of the weights takes before it adds up lanes
//   kBlockBytes      what the source of a tile in one block may take of the L1 cache
//   Reg::SumEach     the sum of the lanes of each of Reg::kWidth registers in memory
//   StoreTotals      the same of 4 and of 8 registers, written to memory
//
// Load may become the memory operand of every instruction that uses the value, which repeats the load; LoadOnce does
// not. GCC prefers the former, and it costs a fifth of the forward pass of a layer at half density.
#pragma once

#include "conv.h"
#include "vec.h"

namespace sparsyedge::kernels::SPARSYEDGE_ISA {

#if defined(SPARSYEDGE_ISA_AVX512)
// ---------------------------------------------------------------------------------------------------------------------
// 32 zmm: 16 sums, 3 weights and a source vector for the forward pass; 16 of dy and up to 6 sums for the gradient

inline constexpr int kTilePositions = 16;
inline constexpr int kGradStack = 1;
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

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[4], float* p) {
  const auto halve = [](__m512 x, __m512 y) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, x, y), _mm512_shuffle_ps(x, y, 0x4e));
  };
  const __m512 low = halve(a[0].v, a[1].v), high = halve(a[2].v, a[3].v);
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
}

#elif defined(SPARSYEDGE_ISA_AVX2)
// ---------------------------------------------------------------------------------------------------------------------
// 16 ymm: 8 sums, 3 weights and a source vector for the forward pass; 8 of dy, up to 6 sums and a source vector for the
// gradient

inline constexpr int kTilePositions = 4;
inline constexpr int kGradStack = 2;
inline constexpr int kBlockBytes = 18 * 1024;  // of 32 KiB

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
    __m256 a[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(p + 8 * i);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm256_add_ps(_mm256_blend_ps(a[i], a[i + 4], 0xf0), _mm256_permute2f128_ps(a[i], a[i + 4], 0x21));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      a[i] = _mm256_add_ps(_mm256_blend_ps(a[i], a[i + 2], 0xcc), _mm256_shuffle_ps(a[i], a[i + 2], 0x4e));
    }
    return {_mm256_add_ps(_mm256_blend_ps(a[0], _mm256_moveldup_ps(a[1]), 0xaa),
                          _mm256_blend_ps(_mm256_movehdup_ps(a[0]), a[1], 0xaa))};
  }
};

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[4], float* p) {
  const auto halve = [](__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_blend_ps(x, y, 0xcc), _mm256_shuffle_ps(x, y, 0x4e));
  };
  const __m256 low = halve(a[0].v, a[1].v), high = halve(a[2].v, a[3].v);
  const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

#elif defined(SPARSYEDGE_ISA_NEON)
// ---------------------------------------------------------------------------------------------------------------------
// 32 q registers, two per Reg: 8 sums, 3 weights and a source vector for the forward pass

inline constexpr int kTilePositions = 4;
inline constexpr int kGradStack = 2;
inline constexpr int kBlockBytes = 18 * 1024;  // of 32 KiB

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

SPARSYEDGE_INLINE Reg Fma(Reg a, Reg b, Reg c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[4], float* p) {
  float32x4_t half[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) half[i] = vaddq_f32(a[i].lo, a[i].hi);
  vst1q_f32(p, vpaddq_f32(vpaddq_f32(half[0], half[1]), vpaddq_f32(half[2], half[3])));
}

#endif

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[8], float* p) {
  StoreTotals({a[0], a[1], a[2], a[3]}, p);
  StoreTotals({a[4], a[5], a[6], a[7]}, p + 4);
}

}  // namespace sparsyedge::kernels::SPARSYEDGE_ISA
