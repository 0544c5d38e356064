// Shared by mask.cc and values.cc.
#pragma once

#include <cstdint>

// Counts set bits. Plain x86-64 has no instruction for it, and the compiler's builtin would call a function.
inline uint32_t CountBits(uint32_t bits) {
  bits -= bits >> 1 & 0x55555555u;
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return ((bits + (bits >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}
