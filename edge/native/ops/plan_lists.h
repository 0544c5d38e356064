// The lists of a pass (kernels/conv.h), built from the non-zeros of a layer as that pass sees them.
#pragma once

#include <vector>

#include "../kernels/conv.h"

namespace sparsyedge {

// A non-zero of a pass. Taps are counted from the first one that is live.
struct Entry {
  int32_t row, channel, tap_h, tap_w;
  int32_t value;  // its position in the values that the caller knows
};

struct Lists {
  std::vector<kernels::BlockVisits> blocks;
  std::vector<kernels::Visit> visits;
  std::vector<int32_t> offsets;
  std::vector<int32_t> values;  // Entry::value in the order of the visits
};

// The lists of a pass whose tile, block and parts are chosen; fills in how long they are.
Lists BuildLists(kernels::PassShape& shape, const std::vector<Entry>& entries);

// Lists one after the other in one vector, without those that were put there a moment ago: where a layer is not pruned,
// the visits of a block come with the same few lists.
class SharedLists {
 public:
  explicit SharedLists(std::vector<int32_t>& storage) : storage_(storage) {}

  // Returns where the list begins.
  int32_t Put(const std::vector<int32_t>& list);

 private:
  std::vector<int32_t>& storage_;
  std::vector<int32_t> recent_;
};

}  // namespace sparsyedge
