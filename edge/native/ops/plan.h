// A sparse layer's plan: SparsePlan makes it once per round, and every sparse op of the layer reads it.
#pragma once

#include "../kernels/conv.h"
#include "../op.h"

namespace sparsyedge {

inline constexpr int32_t kPlanMagic = 0x4e4c5053;  // "SPLN"
inline constexpr int32_t kPlanVersion = 3;

// The first int32 values of a plan.
struct PlanHeader {
  int32_t magic, version;
  int32_t size;  // of the whole plan, in int32
  int32_t nnz;
  int32_t weights;  // oc * ic / groups * kernel_h * kernel_w: nnz / weights is the layer's density
  int32_t oc, ic, groups, kernel_h, kernel_w, stride, pad_h, pad_w;
  int32_t in_h, in_w, out_h, out_w;  // true sizes
  int32_t pad_in, pad_out;           // halos of the input and of the output tensor
  int32_t pass_count;                // the forward pass, then those of the input's gradient, if any
  int32_t tile_positions;            // of the kernels the plan is for
  int32_t reserved[11];
};
static_assert(sizeof(PlanHeader) == 32 * sizeof(int32_t));

// The header of a plan; throws if the tensor is not a plan.
const PlanHeader& ReadPlan(const Tensor<const int32_t>& plan);

// The passes of a plan, pointing into it.
std::vector<kernels::Pass> ReadPasses(const Tensor<const int32_t>& plan);

}  // namespace sparsyedge
