// Batch normalisation on one plane of a lanes tensor (kernels/norm.inc).
//
// A plane is `height` rows of `width` positions of 16 floats; pointers go to its first true position, strides are the
// floats from one row to the next. No kernel here uses fused multiply-add or sums across lanes, so every instruction
// set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

struct NormForward {
  size_t height, width;
  const float* x;
  size_t x_stride;
  const float* residual;  // null when there is none
  size_t residual_stride;
  float* y;
  size_t y_stride;
  uint16_t* positive;  // (height, width) bits per lane; null without ReLU
  float mean, scale, shift;
  uint32_t used_lanes;  // bits; the others are written as zeros
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
  float* dresidual;  // null when nobody asks for it
  size_t dresidual_stride;
  float mean;
  float dy_mean;   // sum(dy) / n
  float dy_slope;  // sum(dy * (x - mean)) / n * inv_std^2
  float scale;     // gamma * inv_std
  uint32_t used_lanes;
};

struct NormKernels {
  // sum[lane] += sum of x, square[lane] += sum of x * x. In double, where the products are exact and the difference of
  // the two sums keeps all digits that the floats had.
  void (*sums)(size_t height, size_t width, const float* x, size_t x_stride, double* sum, double* square);

  // y = (x - mean) * scale + shift + residual, then ReLU when `positive` is there. NaN passes and counts as positive.
  void (*forward)(const NormForward&);

  // sum[lane] += sum of dy, product[lane] += sum of dy * (x - mean), of the dy that ReLU let through; writes dresidual.
  void (*backward_sums)(const NormBackward&, double* sum, double* product);

  // dx = (dy - dy_mean - (x - mean) * dy_slope) * scale
  void (*backward)(const NormBackward&);
};

}  // namespace sparsyedge::kernels
