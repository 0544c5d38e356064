// What "the k largest" means in activation pruning: how many, and in which order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparsyedge {

// max(1, ceil(nonzeros / weights * elements)), in integers: a rounded fraction would sometimes be off by one. Dividing
// `elements` by `weights` first keeps the product below weights^2, far from overflow.
inline size_t KeepCount(size_t nonzeros, size_t weights, size_t elements) {
  const size_t whole = nonzeros * (elements / weights);
  const size_t rest = (nonzeros * (elements % weights) + weights - 1) / weights;
  return std::max<size_t>(1, whole + rest);
}

// The same, but at least `least` ten-thousandths of the elements; an integer, so that all sides count alike.
constexpr int64_t kWholeShare = 10'000;
inline size_t KeepCount(size_t nonzeros, size_t weights, size_t elements, size_t least) {
  const size_t whole = kWholeShare;
  return nonzeros * whole < least * weights ? KeepCount(least, whole, elements)
                                            : KeepCount(nonzeros, weights, elements);
}

inline constexpr uint32_t kNanKey = 0x7f800001;

// |x| as an integer of the same order. All NaNs share the key just above infinity: they sort on top and survive, so the
// loss shows them.
inline uint32_t MagnitudeKey(float x) {
  constexpr uint32_t kWithoutSign = 0x7fffffff;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return std::min(bits & kWithoutSign, kNanKey);
}

// The float that has this key.
inline float MagnitudeOf(uint32_t key) {
  float magnitude;
  std::memcpy(&magnitude, &key, sizeof(magnitude));
  return magnitude;
}

}  // namespace sparsyedge
