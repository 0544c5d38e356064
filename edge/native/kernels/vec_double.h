// DoubleVec: 16 doubles, one per lane, for sums that a float would not hold.
#pragma once

#include "vec.h"

namespace sparsyedge::kernels::SPARSYEDGE_ISA {

#if defined(SPARSYEDGE_ISA_AVX512)

struct DoubleVec {
  __m512d lo, hi;

  static SPARSYEDGE_INLINE DoubleVec Load(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
  // GCC 12 warns of an uninitialised value inside the plain form of this conversion, but not of the masked one.
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

#elif defined(SPARSYEDGE_ISA_AVX2)

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

#else

// NEON has two doubles to a register; the compiler finds them in these loops.
struct DoubleVec {
  double v[kLanes];

  static SPARSYEDGE_INLINE DoubleVec Load(const double* p) {
    DoubleVec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  static SPARSYEDGE_INLINE DoubleVec Load(const float* p) {
    DoubleVec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  SPARSYEDGE_INLINE void Store(double* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  friend SPARSYEDGE_INLINE DoubleVec operator+(DoubleVec a, DoubleVec b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
    return a;
  }
  friend SPARSYEDGE_INLINE DoubleVec operator*(DoubleVec a, DoubleVec b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
    return a;
  }
};

#endif

SPARSYEDGE_INLINE DoubleVec ToDouble(Vec a) {
  float lanes[kLanes];
  a.Store(lanes);
  return DoubleVec::Load(lanes);
}

}  // namespace sparsyedge::kernels::SPARSYEDGE_ISA
