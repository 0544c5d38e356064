// Depthwise convolution of 16 channels at a time (kernels/depthwise.inc).
//
// The planes of 16 channels become one plane of positions of 16 floats, as in the fused layout but with channels as
// lanes. A tap of the kernel is then one vector of weights, whatever stride and border are.
#pragma once

#include <cstddef>

namespace sparsyedge::kernels {

// One tap of the positions of a window: floats from the position's source, and from the first weight.
struct DepthwiseTap {
  ptrdiff_t source;
  size_t weight;
};

// Outputs that have the same taps: a grid of `rows` times `columns` positions. Offsets and steps are in floats.
struct DepthwiseGrid {
  size_t rows, out_row_step, source_row_step;
  size_t columns, out_step, source_step;
  size_t out, source;  // of the first position
  const DepthwiseTap* taps;
  size_t tap_count;
};

struct DepthwiseKernels {
  // Copies 16 planes of `size` floats to positions, or back.
  void (*to_lanes)(size_t size, const float* const (&planes)[16], float* lanes);
  void (*from_lanes)(size_t size, const float* lanes, float* const (&planes)[16]);

  // out = sum of weight * source over the taps of every position of the grid.
  void (*convolve)(const DepthwiseGrid& grid, const float* source, const float* weights, float* out);

  // products[tap.weight] += sum of dy * source over the positions of the grid. In float: rows first, then their sums.
  void (*products)(const DepthwiseGrid& grid, const float* dy, const float* source, float* products);
};

}  // namespace sparsyedge::kernels
