// The values that a mask keeps: byte planes, differences to a base, and the two lossy codings.
#include <cmath>
#include <cstring>

#include "codec.h"

namespace {

// The quantised range is symmetric: -128 is never written.
constexpr float kSteps = 127.0f;

// 1.5 * 2^23: added to a small number it leaves no room for a fraction, so the sum is rounded to an integer, ties to
// even, by the machine's own addition; taken away again it leaves that integer. Unlike nearbyint() it is vector code.
constexpr float kRounder = 12582912.0f;

template <size_t kWidth>
void Split(const uint8_t* words, size_t count, uint8_t* planes) {
  for (size_t plane = 0; plane < kWidth; ++plane) {
    for (size_t i = 0; i < count; ++i) planes[plane * count + i] = words[i * kWidth + plane];
  }
}

template <size_t kWidth>
void Join(const uint8_t* planes, size_t count, uint8_t* words) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t plane = 0; plane < kWidth; ++plane) words[i * kWidth + plane] = planes[plane * count + i];
  }
}

// Unsigned arithmetic throughout: it wraps where a signed difference would overflow, which C++ leaves undefined.
template <typename Word>
void Difference(const Word* bits, const Word* base, size_t count, Word* out) {
  constexpr unsigned kTop = 8 * sizeof(Word) - 1;
  for (size_t i = 0; i < count; ++i) {
    const Word difference = static_cast<Word>(bits[i] - base[i]);
    const Word sign = static_cast<Word>(0 - (difference >> kTop));
    out[i] = static_cast<Word>((difference << 1) ^ sign);
  }
}

template <typename Word>
void Restore(const Word* differences, const Word* base, size_t count, Word* out) {
  for (size_t i = 0; i < count; ++i) {
    const Word sign = static_cast<Word>(0 - (differences[i] & 1));
    out[i] = static_cast<Word>(base[i] + ((differences[i] >> 1) ^ sign));
  }
}

}  // namespace

int64_t se_split_planes(const uint8_t* words, size_t count, size_t width, uint8_t* planes) {
  switch (width) {
    case 1: Split<1>(words, count, planes); return 0;
    case 2: Split<2>(words, count, planes); return 0;
    case 4: Split<4>(words, count, planes); return 0;
    default: return kBadParameter;
  }
}

int64_t se_join_planes(const uint8_t* planes, size_t count, size_t width, uint8_t* words) {
  switch (width) {
    case 1: Join<1>(planes, count, words); return 0;
    case 2: Join<2>(planes, count, words); return 0;
    case 4: Join<4>(planes, count, words); return 0;
    default: return kBadParameter;
  }
}

int64_t se_difference32(const uint32_t* bits, const uint32_t* base, size_t count, uint32_t* out) {
  Difference(bits, base, count, out);
  return 0;
}

int64_t se_restore32(const uint32_t* differences, const uint32_t* base, size_t count, uint32_t* out) {
  Restore(differences, base, count, out);
  return 0;
}

int64_t se_difference16(const uint16_t* halves, const uint16_t* base, size_t count, uint16_t* out) {
  Difference(halves, base, count, out);
  return 0;
}

int64_t se_restore16(const uint16_t* differences, const uint16_t* base, size_t count, uint16_t* out) {
  Restore(differences, base, count, out);
  return 0;
}

int64_t se_bf16_round(const uint32_t* bits, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t value = bits[i];
    const uint32_t rounded = (value + 0x7FFFu + ((value >> 16) & 1)) >> 16;
    // Rounding could carry a NaN's payload into the exponent or away; a quiet NaN keeps its sign and upper payload.
    const uint32_t quiet = (value >> 16) | 0x0040u;
    out[i] = static_cast<uint16_t>((value & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
  return 0;
}

int64_t se_bf16_widen(const uint16_t* halves, size_t count, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint32_t>(halves[i]) << 16;
  return 0;
}

int64_t se_int8_encode(const float* values, const float* base, size_t count, int8_t* steps, float* scale) {
  *scale = 0.0f;
  float largest = 0.0f;
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i] - base[i]);
    finite &= magnitude <= __FLT_MAX__;  // false for NaN as well
    largest = magnitude > largest ? magnitude : largest;
  }
  if (!finite) return kNotFinite;
  const float step = largest / kSteps;
  // All equal, or differences so small that a 127th of them is no float any more.
  if (step == 0.0f) {
    if (count > 0) std::memset(steps, 0, count);
    return 0;
  }
  for (size_t i = 0; i < count; ++i) {
    float rounded = ((values[i] - base[i]) / step + kRounder) - kRounder;
    rounded = rounded > kSteps ? kSteps : rounded < -kSteps ? -kSteps : rounded;
    steps[i] = static_cast<int8_t>(std::signbit(base[i]) ? -rounded : rounded);
  }
  *scale = step;
  return 0;
}

int64_t se_int8_decode(const int8_t* steps, const float* base, size_t count, float scale, float* out) {
  if (!(scale >= 0.0f && scale <= __FLT_MAX__)) return kNotFinite;
  for (size_t i = 0; i < count; ++i) {
    const float step = static_cast<float>(steps[i]);
    out[i] = base[i] + (std::signbit(base[i]) ? -step : step) * scale;
  }
  return 0;
}
