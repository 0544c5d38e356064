// What both halves of the codec ask of a mask.
#pragma once

#include <cstdint>

// The number of set bits, without the instruction for it, which a plain x86-64 build cannot use and would call a
// function for instead.
inline uint32_t CountBits(uint32_t bits) {
  bits -= bits >> 1 & 0x55555555u;
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return ((bits + (bits >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}
