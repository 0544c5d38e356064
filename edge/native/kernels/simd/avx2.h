// AVX2 with FMA: a Vec is two ymm, a Reg is one. See simd.h for what each name means.
#pragma once

#include <immintrin.h>

#include "base.h"

namespace sparsyedge::kernels::avx2 {

// ---------------------------------------------------------------------------------------------------------------------
// Convolution. Of 16 ymm, the forward pass takes 8 sums, 3 weights and a source vector; the gradient of the weights
// takes 8 of dy, up to 6 sums and a source vector.

inline constexpr int kTilePositions = 4;
inline constexpr int kGradStack = 2;
inline constexpr int kBlockBytes = 18 * 1024;  // of 32 KiB
inline constexpr int kLoadAhead = 1;
inline constexpr int kSinglesAhead = 1;
inline constexpr int kBlockTokens = 64;

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
  static SPARSYEDGE_INLINE Reg LoadInOrder(const float* p, int first) { return LoadOnce(p + first); }
  SPARSYEDGE_INLINE void Store(float* p) const { _mm256_storeu_ps(p, v); }

  friend SPARSYEDGE_INLINE Reg operator+(Reg a, Reg b) { return {_mm256_add_ps(a.v, b.v)}; }

  // Each step adds neighbours and halves the number of registers.
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

SPARSYEDGE_INLINE Reg FmaInOrder(Reg a, Reg b, Reg c) { return Fma(a, b, c); }
SPARSYEDGE_INLINE Reg MulInOrder(Reg a, Reg b) { return {_mm256_mul_ps(a.v, b.v)}; }

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
  const auto halve = [](__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_blend_ps(x, y, 0xcc), _mm256_shuffle_ps(x, y, 0x4e));
  };
  const __m256 low = halve(a[0].v, a[1].v), high = halve(a[2].v, a[3].v);
  const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

// Pairs of rows, then of pairs, inside the halves of a register; then the halves change places.
SPARSYEDGE_INLINE void Transpose(const float* from, size_t from_pitch, float* to, size_t to_pitch) {
  __m256 a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * from_pitch);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_pitch, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_pitch, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// One position

namespace internal {

// For each mask of 8 lanes, which packed float a lane takes.
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
inline constexpr ExpandTable kExpandTable;

// For each mask of 8 lanes, its lanes in ascending order.
struct PackTable {
  uint8_t lanes[256][8] = {};

  constexpr PackTable() {
    for (int mask = 0; mask < 256; ++mask) {
      for (int lane = 0, next = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) lanes[mask][next++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
alignas(64) inline constexpr PackTable kPackTable;

SPARSYEDGE_INLINE __m256i Indices(const uint8_t (&row)[8]) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row)));
}

SPARSYEDGE_INLINE LaneMask MaskOf(__m256 lo, __m256 hi) {
  return static_cast<LaneMask>(_mm256_movemask_ps(lo) | _mm256_movemask_ps(hi) << 8);
}

SPARSYEDGE_INLINE __m256 KeepEight(LaneMask mask, __m256 a) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits);
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bits)));
}

SPARSYEDGE_INLINE __m256 EightAbove(__m256 a, uint32_t key) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(kMagnitudeBits));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(static_cast<int>(key))));
}

SPARSYEDGE_INLINE __m256 ExpandEight(LaneMask mask, const float* p) {
  const __m256i count = _mm256_set1_epi32(CountLanes(mask));
  const __m256i packed = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i source = Indices(kExpandTable.source[mask]);
  return KeepEight(mask, _mm256_permutevar8x32_ps(_mm256_maskload_ps(p, packed), source));
}

SPARSYEDGE_INLINE void PackEight(LaneMask mask, __m256 a, float* p) {
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a, Indices(kPackTable.lanes[mask])));
}

}  // namespace internal

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

SPARSYEDGE_INLINE Vec Abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

SPARSYEDGE_INLINE Vec Min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

SPARSYEDGE_INLINE Vec KeepLanes(LaneMask mask, Vec a) {
  return {internal::KeepEight(mask, a.lo), internal::KeepEight(mask >> 8, a.hi)};
}

SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) {
  const __m256 zero = _mm256_setzero_ps();
  return internal::MaskOf(_mm256_cmp_ps(a.lo, zero, _CMP_NLE_UQ), _mm256_cmp_ps(a.hi, zero, _CMP_NLE_UQ));
}

SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  return internal::MaskOf(internal::EightAbove(a.lo, key), internal::EightAbove(a.hi, key));
}

SPARSYEDGE_INLINE Vec ExpandLoad(LaneMask mask, const float* p) {
  return {internal::ExpandEight(mask & 0xff, p), internal::ExpandEight(mask >> 8, p + CountLanes(mask & 0xff))};
}

SPARSYEDGE_INLINE void Pack(LaneMask mask, Vec a, float* p) {
  internal::PackEight(mask & 0xff, a.lo, p);
  internal::PackEight(mask >> 8, a.hi, p + CountLanes(mask & 0xff));
}

// Four blocks of 8x8: pairs, then fours within 128 bits, then the halves of two registers.
SPARSYEDGE_INLINE void Transpose(const float* const (&from)[kLanes], float* const (&to)[kLanes]) {
  for (int block = 0; block < 4; ++block) {
    const int row = block / 2 * 8, column = block % 2 * 8;
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      const __m256 even = _mm256_loadu_ps(from[row + i] + column), odd = _mm256_loadu_ps(from[row + i + 1] + column);
      a[i] = _mm256_unpacklo_ps(even, odd);
      a[i + 1] = _mm256_unpackhi_ps(even, odd);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to[column + i] + row, _mm256_permute2f128_ps(b[i], b[4 + i], 0x20));
      _mm256_storeu_ps(to[column + 4 + i] + row, _mm256_permute2f128_ps(b[i], b[4 + i], 0x31));
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Double precision

struct DoubleVec {
  __m256d d0, d1, d2, d3;

  static SPARSYEDGE_INLINE DoubleVec Load(const double* p) {
    return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)};
  }
  static SPARSYEDGE_INLINE DoubleVec Load(const float* p) {
    return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4)),
            _mm256_cvtps_pd(_mm_loadu_ps(p + 8)), _mm256_cvtps_pd(_mm_loadu_ps(p + 12))};
  }
  SPARSYEDGE_INLINE void Store(double* p) const {
    _mm256_storeu_pd(p, d0);
    _mm256_storeu_pd(p + 4, d1);
    _mm256_storeu_pd(p + 8, d2);
    _mm256_storeu_pd(p + 12, d3);
  }

  friend SPARSYEDGE_INLINE DoubleVec operator+(DoubleVec a, DoubleVec b) {
    return {_mm256_add_pd(a.d0, b.d0), _mm256_add_pd(a.d1, b.d1), _mm256_add_pd(a.d2, b.d2), _mm256_add_pd(a.d3, b.d3)};
  }
  friend SPARSYEDGE_INLINE DoubleVec operator*(DoubleVec a, DoubleVec b) {
    return {_mm256_mul_pd(a.d0, b.d0), _mm256_mul_pd(a.d1, b.d1), _mm256_mul_pd(a.d2, b.d2), _mm256_mul_pd(a.d3, b.d3)};
  }
};

}  // namespace sparsyedge::kernels::avx2
