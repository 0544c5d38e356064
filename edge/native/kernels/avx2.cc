#define SPARSYEDGE_ISA avx2
#include "conv.inc"
#include "table.inc"
