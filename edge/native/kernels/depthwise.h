// Depthwise convolution of one plane (kernels/depthwise.inc), as sums over shifted copies of a flat array.
//
// ops/depthwise_conv.cc spreads a plane over an array with zeros between its rows, so that a tap of the kernel is one
// distance in that array, whatever the row. These kernels then know neither rows nor borders.
#pragma once

#include <cstddef>

namespace sparsyedge::kernels {

// Kernels work on this many floats at once: arrays have room for a count that is rounded up to it.
inline constexpr size_t kFlatStep = 16;

// A kernel's taps, or some of them.
struct Taps {
  size_t count;
  const size_t* offsets;  // where a tap's first element is in the source
  const float* weights;
};

struct DepthwiseKernels {
  // out[i] = sum of weights[t] * source[offsets[t] + i] over the taps, for i < count.
  void (*correlate)(size_t count, const Taps& taps, const float* source, float* out);

  // sums[16 t + lane] += sum of dy[i] * source[offsets[t] + i] over the i of a lane, for i < count.
  void (*products)(size_t count, const Taps& taps, const float* dy, const float* source, double* sums);
};

}  // namespace sparsyedge::kernels
