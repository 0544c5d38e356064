// The bytes between SaveInput and SparseLinearGradWeight or LoadInput: a layer's pruned input of any shape.
//
// A SavedInputHeader, then either the tensor as it is (kPlain), or only its non-zeros (kMasked):
//
//   uint32 part_start[parts + 1]   where the values of each 4096 elements begin, in floats from `values`
//   uint16 mask[ceil(elements / 16)]   bit i is set if element i of the 16 is not zero
//   float  values[part_start[parts]]
//
// Every array begins at a multiple of 64 bytes from the header.
#pragma once

#include <cstring>

#include "../kernels/saved.h"
#include "../op.h"

namespace sparsyedge {

inline constexpr uint32_t kSavedInputMagic = 0x4e495345;  // "ESIN"
inline constexpr size_t kSavedPart = 4096;                // elements
inline constexpr size_t kSavedVector = 16;
inline constexpr size_t kMaxSavedRank = 8;

struct SavedInputHeader {
  uint32_t magic;
  uint32_t encoding;  // kernels::SavedEncoding
  uint32_t channels_last;
  uint32_t rank;
  uint64_t value_count;  // floats that follow: the whole tensor, or its non-zeros
  uint64_t reserved[5];
  int64_t shape[kMaxSavedRank];
};
static_assert(sizeof(SavedInputHeader) == 128);

// Offsets from the header, in bytes.
struct SavedInputLayout {
  SavedInputLayout(const SavedInputHeader& header, size_t elements)
      : part_start(sizeof(header)), mask(part_start), values(part_start) {
    if (header.encoding == kernels::kMasked) {
      const size_t parts = (elements + kSavedPart - 1) / kSavedPart;
      const size_t vectors = (elements + kSavedVector - 1) / kSavedVector;
      mask = part_start + kernels::RoundUpToLine((parts + 1) * sizeof(uint32_t));
      values = mask + kernels::RoundUpToLine(vectors * sizeof(uint16_t));
    }
    end = values + header.value_count * sizeof(float);
  }

  size_t part_start, mask, values, end;
};

// A saved input; the bytes belong to the runtime.
class SavedInput {
 public:
  // Throws unless the bytes are the output of SaveInput.
  explicit SavedInput(const Tensor<const uint8_t>& bytes);

  const Shape& shape() const { return shape_; }
  bool channels_last() const { return header_.channels_last != 0; }
  bool masked() const { return header_.encoding == kernels::kMasked; }
  size_t elements() const { return elements_; }
  const float* values() const { return reinterpret_cast<const float*>(bytes_ + layout_.values); }

  // Writes elements [begin, end) to x; begin is a multiple of 16. Only for a masked input.
  void Unpack(size_t begin, size_t end, float* x) const noexcept;

 private:
  static const SavedInputHeader& Check(const Tensor<const uint8_t>& bytes);

  const uint32_t* part_start() const { return reinterpret_cast<const uint32_t*>(bytes_ + layout_.part_start); }
  const uint16_t* mask() const { return reinterpret_cast<const uint16_t*>(bytes_ + layout_.mask); }

  const SavedInputHeader& header_;
  const uint8_t* bytes_;
  Shape shape_;
  size_t elements_;
  SavedInputLayout layout_;
};

}  // namespace sparsyedge
