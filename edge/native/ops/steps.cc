// One SGD step on a parameter: the gradient's last factor, weight decay and update in one pass.
//
// The new value may overwrite the old one: if a session binds an output to its input's memory, a step allocates nothing
// for parameters.
#include "hyperparameters.h"
#include "power.h"

namespace sparsyedge {
namespace {

// w_new = w - lr * (dtheta * beta * |w|^(beta-1) + weight_decay * w). For beta > 1 a zero stays exactly zero.
struct PowerPropStep {
  static constexpr const char* kName = "PowerPropStep";
  static constexpr Port kInputs[] = {{"w"}, {"dtheta"}, {"beta"}, {"weight_decay"}, {"lr"}};
  static constexpr Port kOutputs[] = {{"w_new"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const auto dtheta = context.Input<float>(1);
    RequireSameShape(dtheta, w);
    const float beta = ReadBeta(context, 2);
    const float decay = ReadWeightDecay(context, 3);
    const float lr = ReadLearningRate(context, 4);
    const auto w_new = context.Output<float>(0, w.shape);
    WithPowerGradient(beta, decay, [&](auto gradient) {
      ParallelFill(context, w_new, [gradient, lr, dtheta = dtheta.data, w = w.data](size_t i) {
        return w[i] - lr * gradient(dtheta[i], w[i]);
      });
    });
  }
};

// p_new = p - lr * (dp + weight_decay * p), for BatchNorm's affine pair and biases.
struct DecayStep {
  static constexpr const char* kName = "DecayStep";
  static constexpr Port kInputs[] = {{"p"}, {"dp"}, {"weight_decay"}, {"lr"}};
  static constexpr Port kOutputs[] = {{"p_new"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto p = context.Input<float>(0);
    const auto dp = context.Input<float>(1);
    RequireSameShape(dp, p);
    const float decay = ReadWeightDecay(context, 2);
    const float lr = ReadLearningRate(context, 3);
    ParallelFill(context, context.Output<float>(0, p.shape),
                 [decay, lr, dp = dp.data, p = p.data](size_t i) { return p[i] - lr * (dp[i] + decay * p[i]); });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(PowerPropStep)
SPARSYEDGE_DEFINE_OP(DecayStep)

}  // namespace sparsyedge
