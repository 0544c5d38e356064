// Between a layer's non-zeros and the dense matrix, for layers that compute with the latter.
#include <cstring>

#include "linear_plan.h"

namespace sparsyedge {
namespace {

// Calls body(row, begin, end) for every row's non-zeros, on all threads.
template <typename Body>
void ParallelRows(const Context& context, const LinearPlanArrays& plan, const Body& body) {
  constexpr size_t kTaskFloats = 16384;  // of the dense matrix; below this, waking a thread costs more than the work
  const auto rows = static_cast<size_t>(plan.row_count);
  const size_t per_task = std::max<size_t>(1, kTaskFloats / static_cast<size_t>(plan.column_count));
  context.ParallelTasks((rows + per_task - 1) / per_task, [&, rows, per_task](size_t task) noexcept {
    for (size_t row = task * per_task; row < std::min(rows, (task + 1) * per_task); ++row) {
      body(row, plan.rows.start[row], plan.rows.start[plan.rows.bands * rows + row]);
    }
  });
}

void ParallelCopy(const Context& context, const float* from, const Tensor<float>& to) {
  context.ParallelFor(Blocks(to.size), [from, to = to.data](Block block) noexcept {
    std::memcpy(to + block.begin, from + block.begin, (block.end - block.begin) * sizeof(float));
  });
}

struct Densify {
  static constexpr const char* kName = "Densify";
  static constexpr Port kInputs[] = {{"theta"}, kLinearPlanPort};
  static constexpr Port kOutputs[] = {{"w"}};

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const auto theta = context.Input<float>(0);
    const LinearPlanArrays plan = ReadLinearPlan(context.Input<int32_t>(1));
    RequireValues(theta, plan);
    const auto w = context.Output<float>(0, {plan.row_count, plan.column_count});
    if (plan.full()) return ParallelCopy(context, theta.data, w);
    const auto columns = static_cast<size_t>(plan.column_count);
    ParallelRows(context, plan, [&](size_t row, int32_t begin, int32_t end) noexcept {
      float* to = w.data + row * columns;
      std::memset(to, 0, columns * sizeof(float));
      for (int32_t i = begin; i < end; ++i) to[plan.rows.source[i]] = theta.data[i];
    });
  }
};

struct Sparsify {
  static constexpr const char* kName = "Sparsify";
  static constexpr Port kInputs[] = {{"w"}, kLinearPlanPort};
  static constexpr Port kOutputs[] = {{"theta"}};

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const LinearPlanArrays plan = ReadLinearPlan(context.Input<int32_t>(1));
    if (static_cast<int64_t>(w.size) != plan.weights()) {
      throw OpError("w has shape " + ToString(w.shape) + ", the plan is for " + std::to_string(plan.weights()) +
                    " values, " + ToString(Shape{plan.row_count, plan.column_count}));
    }
    const auto theta = context.Output<float>(0, {plan.nnz});
    if (plan.full()) return ParallelCopy(context, w.data, theta);
    const auto columns = static_cast<size_t>(plan.column_count);
    ParallelRows(context, plan, [&](size_t row, int32_t begin, int32_t end) noexcept {
      const float* from = w.data + row * columns;
      for (int32_t i = begin; i < end; ++i) theta.data[i] = from[plan.rows.source[i]];
    });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(Densify)
SPARSYEDGE_DEFINE_OP(Sparsify)

}  // namespace sparsyedge
