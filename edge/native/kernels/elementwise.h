// Functions of single elements (kernels/elementwise.inc): GELU and dropout.
//
// Outputs may share memory with inputs. Sets with fused multiply-adds agree in every bit; dropout is the same on all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

// One run of elements of a dropout mask.
struct DropoutRun {
  size_t count;
  uint64_t key;        // of the segment of the tensor that the run is part of
  uint32_t first;      // the run's first element, counted from the start of the segment
  uint32_t threshold;  // elements whose 32 random bits are below it become zero
  float scale;         // of the others
};

struct ElementwiseKernels {
  void (*gelu)(size_t count, const float* x, float* y);
  void (*gelu_grad)(size_t count, const float* dy, const float* x, float* dx);
  // The approximation by a hyperbolic tangent.
  void (*gelu_tanh)(size_t count, const float* x, float* y);
  void (*gelu_tanh_grad)(size_t count, const float* dy, const float* x, float* dx);

  void (*dropout)(const DropoutRun& run, const float* x, float* y);
};

}  // namespace sparsyedge::kernels
