// Lanes picked by a condition: the sign of a value, the order of magnitudes, and packing what was picked.
#pragma once

#include "vec.h"

namespace sparsyedge::kernels::SPARSYEDGE_ISA {

// The magnitude of a float as an integer of the same order: its bits without the sign. NaN is above infinity.
inline constexpr uint32_t kMagnitudeBits = 0x7fffffff;

// PositiveOrNan(a)         lanes where not a <= 0
// MagnitudeAbove(a, key)   lanes whose magnitude, as an integer, is above `key`; key <= 0x7fffffff
// Pack(mask, a, p)         writes the lanes of `mask` side by side to p; the rest of p[0..15] is undefined afterwards

#if defined(SPARSYEDGE_ISA_AVX512)

SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) { return _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NLE_UQ); }
SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(kMagnitudeBits));
  return _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(static_cast<int>(key)));
}
// Compressing in a register and storing it whole is several times faster than a compressing store.
SPARSYEDGE_INLINE void Pack(LaneMask mask, Vec a, float* p) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v));
}

#elif defined(SPARSYEDGE_ISA_AVX2)

SPARSYEDGE_INLINE LaneMask TwoHalves(__m256 lo, __m256 hi) {
  return static_cast<LaneMask>(_mm256_movemask_ps(lo) | _mm256_movemask_ps(hi) << 8);
}
SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) {
  const __m256 zero = _mm256_setzero_ps();
  return TwoHalves(_mm256_cmp_ps(a.lo, zero, _CMP_NLE_UQ), _mm256_cmp_ps(a.hi, zero, _CMP_NLE_UQ));
}
SPARSYEDGE_INLINE __m256 EightAbove(__m256 a, uint32_t key) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(kMagnitudeBits));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(static_cast<int>(key))));
}
SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  return TwoHalves(EightAbove(a.lo, key), EightAbove(a.hi, key));
}

// For every set of 8 lanes, the lanes in it in ascending order, one byte each.
struct PackTable {
  uint8_t lanes[256][8];

  constexpr PackTable() : lanes() {
    for (int mask = 0; mask < 256; ++mask) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) lanes[mask][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
alignas(64) inline constexpr PackTable kPackTable;

SPARSYEDGE_INLINE void PackEight(LaneMask mask, __m256 a, float* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPackTable.lanes[mask]));
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a, _mm256_cvtepu8_epi32(bytes)));
}
SPARSYEDGE_INLINE void Pack(LaneMask mask, Vec a, float* p) {
  PackEight(mask & 0xff, a.lo, p);
  PackEight(mask >> 8, a.hi, p + CountLanes(mask & 0xff));
}

#else

#if defined(SPARSYEDGE_ISA_NEON)
SPARSYEDGE_INLINE LaneMask PositiveOrNan(Vec a) {
  const float32x4_t zero = vdupq_n_f32(0.0f);
  return ~(FourBits(vcleq_f32(a.q0, zero)) | FourBits(vcleq_f32(a.q1, zero)) << 4 |
           FourBits(vcleq_f32(a.q2, zero)) << 8 | FourBits(vcleq_f32(a.q3, zero)) << 12) &
         0xffff;
}
SPARSYEDGE_INLINE LaneMask FourAbove(float32x4_t a, uint32_t key) {
  const uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(kMagnitudeBits));
  return FourBits(vcgtq_u32(bits, vdupq_n_u32(key)));
}
SPARSYEDGE_INLINE LaneMask MagnitudeAbove(Vec a, uint32_t key) {
  return FourAbove(a.q0, key) | FourAbove(a.q1, key) << 4 | FourAbove(a.q2, key) << 8 | FourAbove(a.q3, key) << 12;
}
#else
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
#endif

// Every lane is written, and the next one over it when it was not picked: no branch to guess wrong.
SPARSYEDGE_INLINE void Pack(LaneMask mask, Vec a, float* p) {
  float lanes[kLanes];
  a.Store(lanes);
  for (int i = 0; i < kLanes; ++i) {
    *p = lanes[i];
    p += mask >> i & 1;
  }
}

#endif

// Sets masks[i] = mask_at(i) for the positions of a row, where mask_at stores other things as well. Four masks go out
// together: a store of two bytes between every two stores of whole vectors takes twice the time.
template <typename MaskAt>
SPARSYEDGE_INLINE void StoreMasks(size_t width, uint16_t* masks, const MaskAt& mask_at) {
  size_t i = 0;
  for (; i + 4 <= width; i += 4) {
    uint64_t four = mask_at(i);
    four |= static_cast<uint64_t>(mask_at(i + 1)) << 16;
    four |= static_cast<uint64_t>(mask_at(i + 2)) << 32;
    four |= static_cast<uint64_t>(mask_at(i + 3)) << 48;
    __builtin_memcpy(masks + i, &four, sizeof(four));
  }
  for (; i < width; ++i) masks[i] = static_cast<uint16_t>(mask_at(i));
}

}  // namespace sparsyedge::kernels::SPARSYEDGE_ISA
