// Builds the lists of a pass (kernels/conv.h) from a layer's non-zeros.
#pragma once

#include <functional>
#include <vector>

#include "../kernels/conv.h"

namespace sparsyedge {

// A non-zero of a pass. Taps are counted from the first one that is live.
struct Entry {
  int32_t row, channel, tap_h, tap_w;
  int32_t value;  // index into the caller's values
};

// The non-zeros of a layer as a pass sees them, made on demand: together they take several times the layer's weights.
struct Entries {
  int32_t count;                                        // of the layer's values
  std::function<bool(int32_t value, Entry& entry)> at;  // false if no position uses the value
};

struct Lists {
  std::vector<kernels::BlockVisits> blocks;
  std::vector<kernels::Visit> visits;
  std::vector<int32_t> offsets;
  std::vector<int32_t> values;  // Entry::value in the order of the visits
};

// Builds the lists of a pass whose tile, block and parts are chosen, and fills in their lengths.
Lists BuildLists(kernels::PassShape& shape, const Entries& entries);

// Lists in one vector, without recent duplicates: the visits of a block in an unpruned layer share a few lists.
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
