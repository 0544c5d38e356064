// The largest magnitudes of one plane of a lanes tensor (kernels/select.inc): counting, collecting and packing them.
//
// A magnitude is compared as the integer made of its bits without the sign: the order is the same, and NaN, which must
// not be lost, is above infinity.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

struct SelectKernels {
  // For each row: how many magnitudes are above `high`, and how many are from `low` to `high`. The latter are written
  // to `candidates`, row after row; there must be room for the whole plane and 16 more. low >= 1.
  void (*collect)(size_t height, size_t width, const float* x, size_t x_stride, uint32_t low, uint32_t high,
                  uint32_t* above, uint32_t* between, float* candidates);

  // Writes mask (height, width) and values of the magnitudes from `low` on. `values` has room for exactly `count`.
  void (*pack)(size_t height, size_t width, const float* x, size_t x_stride, uint32_t low, uint16_t* mask,
               float* values, size_t count);
};

}  // namespace sparsyedge::kernels
