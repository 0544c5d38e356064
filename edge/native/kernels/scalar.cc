#define SPARSYEDGE_ISA scalar
#define SPARSYEDGE_ISA_SCALAR 1
#include "table.inc"
