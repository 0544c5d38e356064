// The values that a mask keeps: byte planes, differences to a base, and the two lossy codings.
#include <cmath>
#include <cstring>

#include "bits.h"
#include "codec.h"

namespace {

// The quantised range is symmetric: -128 is never written.
constexpr float kSteps = 127.0f;

// 1.5 * 2^23. Adding it to a small number leaves no room for a fraction, so the sum rounds to an integer, ties to even;
// subtracting it again leaves that integer. Unlike nearbyint(), this vectorises.
constexpr float kRounder = 12582912.0f;

template <size_t kWidth>
void Split(const uint8_t* words, size_t count, uint8_t* planes) {
  for (size_t plane = 0; plane < kWidth; ++plane) {
    for (size_t i = 0; i < count; ++i) planes[plane * count + i] = words[i * kWidth + plane];
  }
}

template <size_t kWidth>
void Join(const uint8_t* planes, size_t count, uint32_t* words) {
  const uint8_t* const p1 = planes + (kWidth > 1 ? count : 0);
  const uint8_t* const p2 = planes + (kWidth > 2 ? 2 * count : 0);
  const uint8_t* const p3 = planes + (kWidth > 3 ? 3 * count : 0);
  for (size_t i = 0; i < count; ++i) {
    uint32_t word = planes[i];
    if (kWidth > 1) word |= uint32_t{p1[i]} << 8;
    if (kWidth > 2) word |= uint32_t{p2[i]} << 16 | uint32_t{p3[i]} << 24;
    words[i] = word;
  }
}

// Unsigned throughout: it wraps, where signed overflow would be undefined.
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
Word Restore(Word difference, Word base) {
  const Word sign = static_cast<Word>(0 - (difference & 1));
  return static_cast<Word>(base + ((difference >> 1) ^ sign));
}

inline uint16_t ToBf16(uint32_t value) {
  const uint32_t rounded = (value + 0x7FFFu + ((value >> 16) & 1)) >> 16;
  // Rounding could carry a NaN's payload into the exponent or drop it; a quiet NaN keeps its sign and upper payload.
  const uint32_t quiet = (value >> 16) | 0x0040u;
  return static_cast<uint16_t>((value & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

inline uint32_t FromBf16(uint32_t half) { return half << 16; }

inline uint32_t Move(uint32_t word, uint32_t base_bits, float scale) {
  float base;
  std::memcpy(&base, &base_bits, sizeof base);
  const float step = static_cast<float>(static_cast<int8_t>(word));
  const float moved = base + (std::signbit(base) ? -step : step) * scale;
  uint32_t bits;
  std::memcpy(&bits, &moved, sizeof bits);
  return bits;
}

// `value_of(word, i)` is the value at position i. Words lie at the end, and no more entries are kept before a position
// than there are, so every word is read before it is overwritten.
template <typename ValueOf>
int64_t Expand(const uint32_t* mask, size_t n, size_t count, uint32_t* bits, ValueOf value_of) {
  if (mask == nullptr) {
    if (count != n) return kBadParameter;
    for (size_t i = 0; i < n; ++i) bits[i] = value_of(bits[i], i);
    return 0;
  }
  size_t kept = 0;
  for (size_t i = 0; i < (n + 31) / 32; ++i) kept += CountBits(mask[i]);
  if (kept != count || (n % 32 != 0 && mask[n / 32] >> n % 32 != 0)) return kBadParameter;
  const uint32_t* word = bits + (n - count);
  for (size_t start = 0; start < n; start += 32) {
    const size_t stop = n - start < 32 ? n : start + 32;
    uint32_t lanes = mask[start / 32];
    if (stop <= n - count) {
      // Entries before the words are zero already.
      for (; lanes != 0; lanes &= lanes - 1) {
        const size_t i = start + static_cast<size_t>(__builtin_ctz(lanes));
        bits[i] = value_of(*word++, i);
      }
      continue;
    }
    for (size_t i = start; i < stop; ++i) bits[i] = lanes >> (i - start) & 1 ? value_of(*word++, i) : 0;
  }
  return 0;
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

int64_t se_join_planes(const uint8_t* planes, size_t count, size_t width, uint32_t* words) {
  switch (width) {
    case 1: Join<1>(planes, count, words); return 0;
    case 2: Join<2>(planes, count, words); return 0;
    case 4: Join<4>(planes, count, words); return 0;
    default: return kBadParameter;
  }
}

int64_t se_put_plane(const uint8_t* plane, size_t count, size_t byte, uint32_t* words) {
  if (byte > 3) return kBadParameter;
  auto* const bytes = reinterpret_cast<uint8_t*>(words) + byte;
  for (size_t i = 0; i < count; ++i) bytes[4 * i] = plane[i];
  return 0;
}

int64_t se_difference32(const uint32_t* bits, const uint32_t* base, size_t count, uint32_t* out) {
  Difference(bits, base, count, out);
  return 0;
}

int64_t se_difference16(const uint16_t* halves, const uint16_t* base, size_t count, uint16_t* out) {
  Difference(halves, base, count, out);
  return 0;
}

int64_t se_bf16_round(const uint32_t* bits, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = ToBf16(bits[i]);
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
  // All differences are zero, or so small that a 127th underflows.
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

int64_t se_expand(const uint32_t* mask, size_t n, size_t count, const uint32_t* base, uint32_t coding, float scale,
                  uint32_t* bits) {
  if (count > n) return kBadParameter;
  const auto expand = [&](auto value_of) { return Expand(mask, n, count, bits, value_of); };
  switch (coding) {
    case kLossless:
      if (base == nullptr) return expand([](uint32_t word, size_t) { return word; });
      return expand([&](uint32_t word, size_t i) { return Restore<uint32_t>(word, base[i]); });
    case kBf16:
      if (base == nullptr) return expand([](uint32_t word, size_t) { return FromBf16(word); });
      return expand([&](uint32_t word, size_t i) {
        return FromBf16(Restore<uint16_t>(static_cast<uint16_t>(word), ToBf16(base[i])));
      });
    case kInt8:
      if (base == nullptr) return kBadParameter;
      if (!(scale >= 0.0f && scale <= __FLT_MAX__)) return kNotFinite;
      return expand([&](uint32_t word, size_t i) { return Move(word, base[i], scale); });
    default: return kBadParameter;
  }
}
