// Layer norm and the gradient of softmax, on rows of contiguous floats (kernels/rows.inc).
//
// Sums have a fixed order and nothing fuses multiply-adds, so every instruction set gives the same bits.
#pragma once

#include <cstddef>

namespace sparsyedge::kernels {

struct LayerNormRows {
  size_t rows, columns;
  const float* x;
  const float* gamma;
  const float* beta;
  double epsilon;
  float* y;
  float* mean;  // one per row
  float* inv_std;
};

struct LayerNormGradRows {
  size_t rows, columns;
  const float* dy;
  const float* x;
  const float* mean;
  const float* inv_std;
  const float* gamma;
  float* dx;      // may be dy
  float* dgamma;  // one per column; the rows are added to it
  float* dbeta;
};

struct RowKernels {
  void (*layer_norm)(const LayerNormRows&);

  // Adds up the rows' dgamma and dbeta in float: callers pass a few dozen rows at a time.
  void (*layer_norm_grad)(const LayerNormGradRows&);

  // dx = (dy - sum(dy * y)) * y in every row; dx may be dy.
  void (*softmax_grad)(size_t rows, size_t columns, const float* dy, const float* y, float* dx);
};

}  // namespace sparsyedge::kernels
