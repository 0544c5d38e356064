#define SPARSYEDGE_ISA scalar
#include "conv_scalar.inc"
#include "table.inc"
