// The gradient of a softmax over the last axis, from its output.
#include "../kernels/dispatch.h"
#include "rows.h"

namespace sparsyedge {
namespace {

struct SoftmaxGrad {
  static constexpr const char* kName = "SoftmaxGrad";
  static constexpr Port kInputs[] = {{"dy"}, {"y"}};
  static constexpr Port kOutputs[] = {{"dx"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/1); }

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto y = context.Input<float>(1);
    RequireSameShape(dy, y);
    const Rows rows = RowsOf(y);
    const auto dx = context.Output<float>(0, y.shape);
    const auto kernel = kernels::Kernels().rows.softmax_grad;
    const RowTasks tasks(rows);
    context.ParallelTasks(tasks.count(), [&](size_t task) noexcept {
      const Block block = tasks.at(task);
      const size_t first = block.begin * rows.columns;
      kernel(block.end - block.begin, rows.columns, dy.data + first, y.data + first, dx.data + first);
    });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SoftmaxGrad)

}  // namespace sparsyedge
