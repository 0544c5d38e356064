// Which instruction set the kernels use: decided once per process, from what the CPU has and SPARSYEDGE_FORCE_ISA.
#pragma once

#include "conv.h"
#include "norm.h"
#include "select.h"

namespace sparsyedge::kernels {

// Every kernel of one instruction set. A family of kernels is a struct of function pointers with a header of its own.
struct KernelTable {
  const char* isa;
  ConvKernels conv;
  NormKernels norm;
  SelectKernels select;
};

// The table in use. Throws OpError when SPARSYEDGE_FORCE_ISA names a set that this CPU or this build does not have.
const KernelTable& Kernels();

}  // namespace sparsyedge::kernels
