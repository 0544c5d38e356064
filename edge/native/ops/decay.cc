// Weight decay for parameters that have no re-parametrisation: BatchNorm's affine pair and biases.
//
// The runtime's SGD has no weight decay, so the gradient of an op that otherwise copies adds it.
#include "hyperparameters.h"

namespace sparsyedge {
namespace {

struct Decay {
  static constexpr const char* kName = "Decay";
  static constexpr Port kInputs[] = {{"p"}, {"weight_decay"}};
  static constexpr Port kOutputs[] = {{"p_out"}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto p = context.Input<float>(0);
    ReadWeightDecay(context, 1);  // only the gradient uses it, but report a bad value early
    ParallelFill(context, context.Output<float>(0, p.shape), [p = p.data](size_t i) { return p[i]; });
  }
};

struct DecayGrad {
  static constexpr const char* kName = "DecayGrad";
  static constexpr Port kInputs[] = {{"dp"}, {"p"}, {"weight_decay"}};
  static constexpr Port kOutputs[] = {{"dp_out"}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/1); }

  void Compute(const Context& context) const {
    const auto dp = context.Input<float>(0);
    const auto p = context.Input<float>(1);
    RequireSameShape(dp, p);
    const float decay = ReadWeightDecay(context, 2);
    ParallelFill(context, context.Output<float>(0, p.shape),
                 [dp = dp.data, p = p.data, decay](size_t i) { return dp[i] + decay * p[i]; });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(Decay)
SPARSYEDGE_DEFINE_OP(DecayGrad)

}  // namespace sparsyedge
