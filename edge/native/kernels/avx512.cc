#define SPARSYEDGE_ISA avx512
#include "conv.inc"
#include "table.inc"
