// Optimizers with a memory, as torch.optim has them, and gradient clipping by the norm of all gradients.
//
// Every new value may overwrite the old one. A weight of zero whose gradient and memory are zero stays exactly zero.
#include <cmath>

#include "hyperparameters.h"

namespace sparsyedge {
namespace {

// A factor for gradients, from clipping; NaN passes, so that a diverged step shows in the next loss.
float ReadScale(const Context& context, size_t input) {
  const float scale = context.Scalar(input);
  if (scale < 0.0f) throw OpError("scale is " + ToString(scale) + ", must be at least 0");
  return scale;
}

// A share below 1 as a person wrote it: a float holds 0.999 to 1e-8, which is 1e-5 of the distance to 1.
double ReadShare(const Attributes& attributes, const char* name) {
  const double share = std::round(double{attributes.Float(name)} * 1e7) / 1e7;
  if (!(share >= 0.0 && share < 1.0)) {
    throw OpError(std::string(name) + " is " + std::to_string(share) + ", must be at least 0 and below 1");
  }
  return share;
}

// g = scale * dw + weight_decay * w; m_new = momentum * m + g; w_new = w - lr * m_new, or, after Nesterov,
// w - lr * (g + momentum * m_new).
struct MomentumStep {
  static constexpr const char* kName = "MomentumStep";
  static constexpr Port kInputs[] = {{"w"}, {"dw"}, {"m"}, {"scale"}, {"weight_decay"}, {"lr"}};
  static constexpr Port kOutputs[] = {{"w_new"}, {"m_new"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}, {/*input=*/2, /*output=*/1}};

  explicit MomentumStep(const Attributes& attributes)
      : momentum(static_cast<float>(ReadShare(attributes, "momentum"))),
        nesterov(attributes.Int("nesterov", 0, 1, 0) != 0) {}

  static void InferShapes(const ShapeContext& shapes) {
    shapes.SameAsInput(/*output=*/0, /*input=*/0);
    shapes.SameAsInput(/*output=*/1, /*input=*/0);
  }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const auto dw = context.Input<float>(1);
    const auto m = context.Input<float>(2);
    RequireSameShape(dw, w);
    RequireSameShape(m, w);
    const float scale = ReadScale(context, 3);
    const float decay = ReadWeightDecay(context, 4);
    const float lr = ReadLearningRate(context, 5);
    // What w moves by is own * g + past * m_new.
    const float own = nesterov ? 1.0f : 0.0f, past = nesterov ? momentum : 1.0f;
    const auto w_new = context.Output<float>(0, w.shape);
    const auto m_new = context.Output<float>(1, w.shape);
    context.ParallelFor(Blocks(w.size), [=, momentum = momentum, w = w.data, dw = dw.data, m = m.data,
                                         w_out = w_new.data, m_out = m_new.data](Block block) noexcept {
#pragma GCC ivdep
      for (size_t i = block.begin; i < block.end; ++i) {
        const float g = scale * dw[i] + decay * w[i];
        const float memory = momentum * m[i] + g;
        w_out[i] = w[i] - lr * (own * g + past * memory);
        m_out[i] = memory;
      }
    });
  }

  float momentum;
  bool nesterov;
};

// m_new = beta1 m + (1 - beta1) g and v_new = beta2 v + (1 - beta2) g^2 with g = scale * dw; both are divided by what
// they lack after so many steps, this one included, and w_new = w - lr (weight_decay w + m / (sqrt(v) + epsilon)).
struct AdamWStep {
  static constexpr const char* kName = "AdamWStep";
  static constexpr Port kInputs[] = {{"w"}, {"dw"}, {"m"}, {"v"}, {"scale"}, {"weight_decay"}, {"lr"}, {"steps"}};
  static constexpr Port kOutputs[] = {{"w_new"}, {"m_new"}, {"v_new"}};
  static constexpr InPlace kInPlace[] = {
      {/*input=*/0, /*output=*/0}, {/*input=*/2, /*output=*/1}, {/*input=*/3, /*output=*/2}};

  explicit AdamWStep(const Attributes& attributes)
      : beta1(ReadShare(attributes, "beta1")),
        beta2(ReadShare(attributes, "beta2")),
        epsilon(attributes.Float("epsilon")) {
    if (!(epsilon > 0.0f)) throw OpError("epsilon is " + ToString(epsilon) + ", must be above 0");
  }

  static void InferShapes(const ShapeContext& shapes) {
    for (size_t output = 0; output < 3; ++output) shapes.SameAsInput(output, /*input=*/0);
  }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const auto dw = context.Input<float>(1);
    const auto m = context.Input<float>(2);
    const auto v = context.Input<float>(3);
    RequireSameShape(dw, w);
    RequireSameShape(m, w);
    RequireSameShape(v, w);
    const float scale = ReadScale(context, 4);
    const float decay = ReadWeightDecay(context, 5);
    const float lr = ReadLearningRate(context, 6);
    const float steps = context.Scalar(7);
    if (!(steps >= 1.0f)) throw OpError("steps is " + ToString(steps) + ", must be at least 1");

    const auto kept = static_cast<float>(1.0 - double{lr} * decay);
    const auto size = static_cast<float>(lr / (1.0 - std::pow(beta1, double{steps})));
    const auto root = static_cast<float>(std::sqrt(1.0 - std::pow(beta2, double{steps})));
    const auto old1 = static_cast<float>(beta1), new1 = static_cast<float>(1.0 - beta1);
    const auto old2 = static_cast<float>(beta2), new2 = static_cast<float>(1.0 - beta2);
    const auto w_new = context.Output<float>(0, w.shape);
    const auto m_new = context.Output<float>(1, w.shape);
    const auto v_new = context.Output<float>(2, w.shape);
    context.ParallelFor(Blocks(w.size),
                        [=, epsilon = epsilon, w = w.data, dw = dw.data, m = m.data, v = v.data, w_out = w_new.data,
                         m_out = m_new.data, v_out = v_new.data](Block block) noexcept {
#pragma GCC ivdep
                          for (size_t i = block.begin; i < block.end; ++i) {
                            const float g = scale * dw[i];
                            const float first = old1 * m[i] + new1 * g;
                            const float second = old2 * v[i] + new2 * g * g;
                            w_out[i] = kept * w[i] - size * first / (std::sqrt(second) / root + epsilon);
                            m_out[i] = first;
                            v_out[i] = second;
                          }
                        });
  }

  double beta1, beta2;
  float epsilon;
};

// The Euclidean norm of a tensor. Blocks are summed in double precision and in order, on any number of threads.
struct GradientNorm {
  static constexpr const char* kName = "GradientNorm";
  static constexpr Port kInputs[] = {{"dw"}};
  static constexpr Port kOutputs[] = {{"norm"}};

  void Compute(const Context& context) const {
    const auto dw = context.Input<float>(0);
    const Blocks blocks(dw.size);
    std::vector<double> sums(blocks.count());
    context.ParallelFor(blocks, [dw = dw.data, sums = sums.data()](Block block) noexcept {
      double sum = 0.0;
      for (size_t i = block.begin; i < block.end; ++i) sum += double{dw[i]} * dw[i];
      sums[block.index] = sum;
    });
    double total = 0.0;
    for (const double sum : sums) total += sum;
    context.Output<float>(0, {1}).data[0] = static_cast<float>(std::sqrt(total));
  }
};

// The factor that brings gradients with these norms down to max_norm together; 1 if they are there already.
struct ClipScale {
  static constexpr const char* kName = "ClipScale";
  static constexpr Port kInputs[] = {{"norms"}};
  static constexpr Port kOutputs[] = {{"scale"}};

  explicit ClipScale(const Attributes& attributes) : max_norm(attributes.Float("max_norm")) {
    if (!(max_norm > 0.0f)) throw OpError("max_norm is " + ToString(max_norm) + ", must be above 0");
  }

  void Compute(const Context& context) const {
    const auto norms = context.Input<float>(0);
    double total = 0.0;
    for (size_t i = 0; i < norms.size; ++i) total += double{norms.data[i]} * norms.data[i];
    const double scale = max_norm / (std::sqrt(total) + 1e-6);  // torch's epsilon
    context.Output<float>(0, {1}).data[0] = static_cast<float>(scale > 1.0 ? 1.0 : scale);
  }

  float max_norm;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(MomentumStep)
SPARSYEDGE_DEFINE_OP(AdamWStep)
SPARSYEDGE_DEFINE_OP(GradientNorm)
SPARSYEDGE_DEFINE_OP(ClipScale)

}  // namespace sparsyedge
