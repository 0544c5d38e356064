// Batch normalisation on one plane of a lanes tensor (kernels/norm.inc).
//
// A plane is `height` rows of `width` positions of 16 floats. Pointers lead to its first position inside the halo;
// strides count floats from row to row. These kernels neither fuse multiply-adds nor add across lanes, so every
// instruction set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

struct NormForward {
  size_t height, width;
  const float* x;
  size_t x_stride;
  const float* residual;  // null if absent
  size_t residual_stride;
  float* y;
  size_t y_stride;
  uint16_t* positive;  // (height, width) bits per lane: where the gradient passes; null without ReLU
  float mean, scale, shift;
  float cap;            // ReLU's upper limit, infinite if it has none
  uint32_t used_lanes;  // bits; the other lanes become zero
};

struct NormBackward {
  size_t height, width;
  const float* dy;
  size_t dy_stride;
  const float* x;
  size_t x_stride;
  const uint16_t* positive;  // null without ReLU
  float* dx;
  size_t dx_stride;
  float* dresidual;  // null if nobody reads it
  size_t dresidual_stride;
  float mean;
  float dy_mean;   // sum(dy) / n
  float dy_slope;  // sum(dy * (x - mean)) / n * inv_std^2
  float scale;     // gamma * inv_std
  uint32_t used_lanes;
};

struct NormKernels {
  // sum[lane] += sum of x, square[lane] += sum of x * x, in double: the products are exact, and the variance keeps all
  // digits of the floats.
  void (*sums)(size_t height, size_t width, const float* x, size_t x_stride, double* sum, double* square);

  // y = (x - mean) * scale + shift + residual, then ReLU if `positive` is set, at most `cap`. NaN passes and counts as
  // positive.
  void (*forward)(const NormForward&);

  // sum[lane] += sum of dy, product[lane] += sum of dy * (x - mean), over the dy that ReLU passes; writes dresidual.
  void (*backward_sums)(const NormBackward&, double* sum, double* product);

  // dx = (dy - dy_mean - (x - mean) * dy_slope) * scale
  void (*backward)(const NormBackward&);
};

}  // namespace sparsyedge::kernels
