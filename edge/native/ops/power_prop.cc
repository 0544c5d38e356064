// Powerpropagation: theta = sign(w) |w|^beta, and its gradient with weight decay on w.
//
// For beta > 1 a zero weight has theta = 0 and gradient 0, both exactly, so a pruned weight stays pruned. That property
// carries the whole method; hence no epsilon, no clamp, and no product that could make NaN out of 0 * inf.
#include <cmath>

#include "hyperparameters.h"

namespace sparsyedge {
namespace {

// The method's default. |w|^1.25 = |w| * |w|^(1/4), and two square roots run at vector speed where pow does not.
constexpr float kRootBeta = 1.25f;

inline float FourthRoot(float magnitude) { return std::sqrt(std::sqrt(magnitude)); }

struct PowerProp {
  static constexpr const char* kName = "PowerProp";
  static constexpr Port kInputs[] = {{"w"}, {"beta"}, {"weight_decay"}};
  static constexpr Port kOutputs[] = {{"theta"}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const float beta = ReadBeta(context, 1);
    ReadWeightDecay(context, 2);  // serves the gradient only, but a bad value is best reported on the way forward
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

    if (beta == 1.0f) {
      ParallelFill(context, dw,
                   [dtheta = dtheta.data, w = w.data, decay](size_t i) { return dtheta[i] + decay * w[i]; });
    } else if (beta == kRootBeta) {
      ParallelFill(context, dw, [dtheta = dtheta.data, w = w.data, decay](size_t i) {
        // Computed for zeros as well, since a load that depends on w would keep the loop out of vector code.
        const float gradient = dtheta[i] * (kRootBeta * FourthRoot(std::fabs(w[i]))) + decay * w[i];
        return w[i] == 0.0f ? 0.0f : gradient;
      });
    } else {
      // Below 1 the slope at zero is infinite, and is left to say so.
      const bool flat_at_zero = beta > 1.0f;
      ParallelFill(context, dw, [dtheta = dtheta.data, w = w.data, beta, decay, flat_at_zero](size_t i) {
        if (flat_at_zero && w[i] == 0.0f) return 0.0f;
        return dtheta[i] * (beta * std::pow(std::fabs(w[i]), beta - 1.0f)) + decay * w[i];
      });
    }
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(PowerProp)
SPARSYEDGE_DEFINE_OP(PowerPropGrad)

}  // namespace sparsyedge
