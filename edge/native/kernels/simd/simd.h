// The vector types and functions of one instruction set: includes simd/<SPARSYEDGE_ISA>.h.
//
// Kernels are written once, in *.inc files, over the names below. avx2.cc, avx512.cc, neon.cc and scalar.cc each define
// SPARSYEDGE_ISA and compile all of them with the flags of that set, in a namespace of that name. Every header offers
// the same names in the same order; scalar.h defines what they mean.
//
//   kTilePositions   positions in a tile of the convolution; its sums fill the register file
//   kGradStack       tiles, 1 or 2, that the weight gradient takes before it adds up lanes
//   kBlockBytes      L1 cache that the source of a tile in one block may use
//   kLoadAhead       registers of the source that the convolution loads before it multiplies any of them: 1 where GCC
//   may
//                    choose the order, otherwise what is free beside the sums
//   kSinglesAhead    single taps, 1 or 4, that the forward pass takes at a time
//   kBlockTokens     tokens in a block of the sparse matrix product; a row's sums take that many floats of registers
//
//   Reg              one register of the convolution, Reg::kWidth lanes
//     Load           may become a memory operand of every instruction that uses the value, which repeats the load
//     LoadOnce       always one load. GCC prefers memory operands, which cost a fifth of the forward pass at density .5
//     SumEach(p)     adds up the lanes of each of the kWidth registers stored at p
//     LoadInOrder    LoadOnce(p + first) and, where kLoadAhead is above 1, in the order of the code
//   FmaInOrder, MulInOrder, Weights  (kLoadAhead as above) a * b + c; a * b; consecutive weights, each times a register
//   Settled          a value that is known before what follows in order
//   WillRead         what was stored before is read by loads in order, of which the compiler knows no address
//                    These are the convolution's alone; scalar.h, whose convolution has no tiles, lacks them
//   Fma(a, b, c)     a * b + c, rounded once where the set can; also of floats, for loops that become vector code
//   StoreTotals      adds up the lanes of each of four registers and stores the four sums
//   Transpose        a square of Reg::kWidth rows, `pitch` floats apart; `from` and `to` do not overlap
//
//   Vec              the 16 lanes of one position
//   Abs
//   Min(a, b)        a where it is less than b, otherwise b: NaN in b stays
//   KeepLanes        zeroes the lanes outside the mask
//   PositiveOrNan    lanes where !(a <= 0)
//   MagnitudeAbove   lanes whose magnitude, as an integer (kMagnitudeBits), is above `key` <= 0x7fffffff
//   ExpandLoad       spreads consecutive floats over the lanes of the mask, zeroes the others; reads no float beyond
//   Pack             stores the lanes of the mask side by side; leaves the rest of p[0..15] undefined
//   Transpose        to[i][j] = from[j][i] for 16 rows of 16 floats
//
//   DoubleVec        16 doubles, one per lane, for sums that overflow a float's digits
//
// Code in *.inc files must not instantiate templates or inline functions of the standard library: the linker keeps one
// copy for the whole library, possibly one with instructions that this CPU lacks.
#pragma once

#include "base.h"

#define SPARSYEDGE_QUOTE(text) #text
#define SPARSYEDGE_QUOTED(macro) SPARSYEDGE_QUOTE(macro)
#include SPARSYEDGE_QUOTED(SPARSYEDGE_ISA.h)

// ---------------------------------------------------------------------------------------------------------------------
// The same code for every instruction set

namespace sparsyedge::kernels::SPARSYEDGE_ISA {

SPARSYEDGE_INLINE void StoreTotals(const Reg (&a)[8], float* p) {
  StoreTotals({a[0], a[1], a[2], a[3]}, p);
  StoreTotals({a[4], a[5], a[6], a[7]}, p + 4);
}

SPARSYEDGE_INLINE DoubleVec ToDouble(Vec a) {
  float lanes[kLanes];
  a.Store(lanes);
  return DoubleVec::Load(lanes);
}

// Sets masks[i] = mask_at(i) for the positions of a row; mask_at stores vectors of its own. Four masks share one store,
// because a two-byte store between every two vector stores takes twice the time.
template <typename MaskAt>
SPARSYEDGE_INLINE void StoreMasks(size_t width, uint16_t* masks, const MaskAt& mask_at) {
  size_t i = 0;
  for (; i + 4 <= width; i += 4) {
    uint64_t four = mask_at(i);
    four |= static_cast<uint64_t>(mask_at(i + 1)) << 16;
    four |= static_cast<uint64_t>(mask_at(i + 2)) << 32;
    four |= static_cast<uint64_t>(mask_at(i + 3)) << 48;
    __builtin_memcpy(masks + i, &four, sizeof(four));
  }
  for (; i < width; ++i) masks[i] = static_cast<uint16_t>(mask_at(i));
}

}  // namespace sparsyedge::kernels::SPARSYEDGE_ISA
