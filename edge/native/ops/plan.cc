#include "plan.h"

#include "../kernels/dispatch.h"

namespace sparsyedge {

const PlanHeader& ReadPlan(const Tensor<const int32_t>& plan) {
  constexpr size_t header_size = sizeof(PlanHeader) / sizeof(int32_t);
  const auto& header = *reinterpret_cast<const PlanHeader*>(plan.data);
  if (plan.size < header_size || header.magic != kPlanMagic || header.version != kPlanVersion) {
    throw OpError(std::string(plan.name) + " of shape " + ToString(plan.shape) +
                  " is not the output of SparsePlan: its first values must be " + std::to_string(kPlanMagic) + ", " +
                  std::to_string(kPlanVersion));
  }
  if (static_cast<size_t>(header.size) != plan.size) {
    throw OpError(std::string(plan.name) + " has " + std::to_string(plan.size) + " values, must have " +
                  std::to_string(header.size) + " as its header says");
  }
  if (header.tile_positions != kernels::Kernels().conv.tile_positions) {
    throw OpError(std::string(plan.name) + " was made for tiles of " + std::to_string(header.tile_positions) +
                  " positions, the kernels of this process (" + kernels::Kernels().isa + ") have tiles of " +
                  std::to_string(kernels::Kernels().conv.tile_positions) + "; make it again");
  }
  return header;
}

namespace {

// Reads arrays off a plan in the order SparsePlan wrote them.
class Cursor {
 public:
  explicit Cursor(const int32_t* at) : at_(at) {}

  template <typename T>
  const T* Take(size_t count) {
    static_assert(sizeof(T) % sizeof(int32_t) == 0);
    const auto* array = reinterpret_cast<const T*>(at_);
    at_ += count * sizeof(T) / sizeof(int32_t);
    return array;
  }

 private:
  const int32_t* at_;
};

}  // namespace

std::vector<kernels::Pass> ReadPasses(const Tensor<const int32_t>& plan) {
  const PlanHeader& header = ReadPlan(plan);
  Cursor cursor(plan.data + sizeof(PlanHeader) / sizeof(int32_t));
  std::vector<kernels::Pass> passes;
  for (int32_t i = 0; i < header.pass_count; ++i) {
    kernels::Pass pass{};
    pass.shape = *cursor.Take<kernels::PassShape>(1);
    const kernels::PassShape& s = pass.shape;
    pass.blocks = cursor.Take<kernels::BlockVisits>(static_cast<size_t>(s.row_parts) * s.blocks);
    pass.visits = cursor.Take<kernels::Visit>(s.visit_total);
    pass.offsets = cursor.Take<int32_t>(s.run_total + kernels::kSinglesAtOnce - 1);
    if (i > 0) {
      pass.gather = cursor.Take<kernels::GatherStart>(s.visit_total);
      pass.places = cursor.Take<int32_t>(s.place_total);
    }
    passes.push_back(pass);
  }
  return passes;
}

}  // namespace sparsyedge
