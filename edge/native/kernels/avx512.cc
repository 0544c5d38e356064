#define SPARSYEDGE_ISA avx512
#define SPARSYEDGE_ISA_AVX512 1
#include "table.inc"
