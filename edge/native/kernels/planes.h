// Batch normalisation of one channel of a plain [N, C, ...] tensor (kernels/planes.inc).
//
// A channel is `count` planes of `size` contiguous floats, `stride` floats apart. Sums go to 16 lanes and nothing fuses
// multiply-adds, so every instruction set gives the same bits. Without planes, [N, C], neighbours are channels: the
// kernels for columns take all channels of some rows at once.
#pragma once

#include <cstddef>

namespace sparsyedge::kernels {

struct ChannelPlanes {
  size_t count, size, stride;
};

struct ChannelGrad {
  const float* dy;
  const float* x;
  float* dx;  // may be dy
  float mean;
  float dy_mean;   // sum(dy) / n
  float dy_slope;  // sum(dy * (x - mean)) / n * inv_std^2
  float scale;     // gamma * inv_std
};

// The same for all channels; mean, dy_mean, dy_slope and scale are vectors.
struct ColumnGrad {
  const float* dy;
  const float* x;
  float* dx;
  const float* mean;
  const float* dy_mean;
  const float* dy_slope;
  const float* scale;
};

struct PlaneKernels {
  // Sets sum and square, 16 lanes each, to parts of the sums of x and x * x, in double: the products are exact, and the
  // variance keeps all digits of the floats.
  void (*sums)(const ChannelPlanes&, const float* x, double* sum, double* square);

  // y = (x - mean) * scale + shift
  void (*normalise)(const ChannelPlanes&, const float* x, float mean, float scale, float shift, float* y);

  // Sets sum and product, 16 lanes each, to parts of the sums of dy and dy * (x - mean).
  void (*grad_sums)(const ChannelPlanes&, const float* dy, const float* x, float mean, double* sum, double* product);

  // dx = (dy - dy_mean - (x - mean) * dy_slope) * scale
  void (*grad)(const ChannelPlanes&, const ChannelGrad&);

  // The same for `rows` rows of one value per channel. Sums are added to vectors over the channels.
  void (*column_sums)(size_t rows, size_t channels, const float* x, double* sum, double* square);
  void (*column_normalise)(size_t rows, size_t channels, const float* x, const float* mean, const float* scale,
                           const float* shift, float* y);
  void (*column_grad_sums)(size_t rows, size_t channels, const float* dy, const float* x, const float* mean,
                           double* sum, double* product);
  void (*column_grad)(size_t rows, size_t channels, const ColumnGrad&);
};

}  // namespace sparsyedge::kernels
