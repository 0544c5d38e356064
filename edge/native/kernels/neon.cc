#define SPARSYEDGE_ISA neon
#define SPARSYEDGE_ISA_NEON 1
#include "table.inc"
