// Picks the kernels' instruction set once per process, from the CPU's features and SPARSYEDGE_FORCE_ISA.
#pragma once

#include "conv.h"
#include "depthwise.h"
#include "elementwise.h"
#include "linear.h"
#include "norm.h"
#include "planes.h"
#include "rows.h"
#include "select.h"

namespace sparsyedge::kernels {

// The kernels of one instruction set. Each family is a struct of function pointers with its own header.
struct KernelTable {
  const char* isa;
  ConvKernels conv;
  LinearKernels linear;
  DepthwiseKernels depthwise;
  ElementwiseKernels elementwise;
  NormKernels norm;
  PlaneKernels planes;
  RowKernels rows;
  SelectKernels select;
};

// The table in use. Throws OpError if this CPU or build lacks the set that SPARSYEDGE_FORCE_ISA names.
const KernelTable& Kernels();

}  // namespace sparsyedge::kernels
