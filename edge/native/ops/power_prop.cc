// Powerpropagation: theta = sign(w) |w|^beta, and its gradient with weight decay on w.
//
// For beta > 1 a zero weight has theta = 0 and gradient 0, both exactly, so a pruned weight stays pruned. That property
// carries the method: hence no epsilon, no clamp, and no product that could turn 0 * inf into NaN.
#include <cmath>

#include "hyperparameters.h"
#include "power.h"

namespace sparsyedge {
namespace {

struct PowerProp {
  static constexpr const char* kName = "PowerProp";
  static constexpr Port kInputs[] = {{"w"}, {"beta"}, {"weight_decay"}};
  static constexpr Port kOutputs[] = {{"theta"}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const float beta = ReadBeta(context, 1);
    ReadWeightDecay(context, 2);  // only the gradient uses it, but report a bad value early
    const auto theta = context.Output<float>(0, w.shape);

    if (beta == 1.0f) {
      ParallelFill(context, theta, [w = w.data](size_t i) { return w[i]; });
    } else if (beta == kRootBeta) {
      ParallelFill(context, theta,
                   [w = w.data](size_t i) { return w[i] == 0.0f ? 0.0f : w[i] * FourthRoot(std::fabs(w[i])); });
    } else {
      ParallelFill(context, theta, [w = w.data, beta](size_t i) {
        return w[i] == 0.0f ? 0.0f : std::copysign(std::pow(std::fabs(w[i]), beta), w[i]);
      });
    }
  }
};

struct PowerPropGrad {
  static constexpr const char* kName = "PowerPropGrad";
  static constexpr Port kInputs[] = {{"dtheta"}, {"w"}, {"beta"}, {"weight_decay"}};
  static constexpr Port kOutputs[] = {{"dw"}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/1); }

  void Compute(const Context& context) const {
    const auto dtheta = context.Input<float>(0);
    const auto w = context.Input<float>(1);
    RequireSameShape(dtheta, w);
    const float beta = ReadBeta(context, 2);
    const float decay = ReadWeightDecay(context, 3);
    const auto dw = context.Output<float>(0, w.shape);

    WithPowerGradient(beta, decay, [&](auto gradient) {
      ParallelFill(context, dw,
                   [gradient, dtheta = dtheta.data, w = w.data](size_t i) { return gradient(dtheta[i], w[i]); });
    });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(PowerProp)
SPARSYEDGE_DEFINE_OP(PowerPropGrad)

}  // namespace sparsyedge
