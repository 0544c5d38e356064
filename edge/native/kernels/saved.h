// The bytes between SaveActivation and SparseConvGradWeight: a layer's pruned input, [G, C, H+2p, W+2p, 16] lanes.
//
// A SavedHeader, then either the tensor as it is, halo included (kPlain), or only its non-zeros (kMasked):
//
//   uint32 row_start[G*C*H + 1]   where each true row's values begin, in floats from `values`
//   uint16 mask[G*C*H*W]          one per true position; bit i is set if lane i is not zero
//   float  values[row_start[G*C*H]]
//
// Every array begins at a multiple of 64 bytes from the header. Rows unpack in any order, as the tiles of the gradient
// need them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

inline constexpr uint32_t kSavedMagic = 0x56415345;  // "ESAV"

enum SavedEncoding : uint32_t { kPlain = 0, kMasked = 1 };

struct SavedHeader {
  uint32_t magic;
  uint32_t encoding;
  int32_t groups, channels, height, width;  // true height and width
  int32_t halo;                             // of the tensor that was saved
  uint32_t value_count;                     // floats that follow: the whole tensor, or its non-zeros
  uint32_t reserved[8];
};
static_assert(sizeof(SavedHeader) == 64);

inline constexpr size_t RoundUpToLine(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Offsets from the header, in bytes.
struct SavedLayout {
  size_t row_start, mask, values, end;
};

inline SavedLayout LayoutOf(const SavedHeader& h) {
  const size_t rows = static_cast<size_t>(h.groups) * h.channels * h.height;
  SavedLayout at{sizeof(SavedHeader), sizeof(SavedHeader), sizeof(SavedHeader), 0};
  if (h.encoding == kMasked) {
    at.mask = at.row_start + RoundUpToLine((rows + 1) * sizeof(uint32_t));
    at.values = at.mask + RoundUpToLine(rows * h.width * sizeof(uint16_t));
  }
  at.end = at.values + h.value_count * sizeof(float);
  return at;
}

}  // namespace sparsyedge::kernels
