// Counts, collects and packs the largest magnitudes of one plane of a lanes tensor (kernels/select.inc).
//
// Magnitudes compare as integers made of their bits without the sign: same order, and NaN, which must survive, is above
// infinity.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

struct SelectKernels {
  // Counts, per row, the magnitudes above `high` and those from `low` to `high`, and writes the latter to `candidates`,
  // row after row; it needs room for the whole plane and 16 more. low >= 1.
  void (*collect)(size_t height, size_t width, const float* x, size_t x_stride, uint32_t low, uint32_t high,
                  uint32_t* above, uint32_t* between, float* candidates);

  // Writes mask (height, width) and values of magnitudes of at least `low`. `values` has room for exactly `count`.
  void (*pack)(size_t height, size_t width, const float* x, size_t x_stride, uint32_t low, uint16_t* mask,
               float* values, size_t count);
};

}  // namespace sparsyedge::kernels
