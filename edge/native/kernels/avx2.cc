#define SPARSYEDGE_ISA avx2
#define SPARSYEDGE_ISA_AVX2 1
#include "table.inc"
