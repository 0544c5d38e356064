#define SPARSYEDGE_ISA neon
#include "conv.inc"
#include "table.inc"
