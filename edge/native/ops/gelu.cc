// GELU and its gradient: x times the normal distribution function, or the approximation of that by a tanh.
#include "../kernels/dispatch.h"
#include "../op.h"

namespace sparsyedge {
namespace {

class Gelu {
 public:
  static constexpr const char* kName = "Gelu";
  static constexpr Port kInputs[] = {{"x"}};
  static constexpr Port kOutputs[] = {{"y"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  explicit Gelu(const Attributes& attributes) : tanh_(attributes.Int("tanh", 0, 1, /*fallback=*/0) != 0) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto y = context.Output<float>(0, x.shape);
    const auto& kernels = kernels::Kernels().elementwise;
    const auto kernel = tanh_ ? kernels.gelu_tanh : kernels.gelu;
    context.ParallelFor(Blocks(x.size), [kernel, x = x.data, y = y.data](Block block) noexcept {
      kernel(block.end - block.begin, x + block.begin, y + block.begin);
    });
  }

 private:
  bool tanh_;
};

class GeluGrad {
 public:
  static constexpr const char* kName = "GeluGrad";
  static constexpr Port kInputs[] = {{"dy"}, {"x"}};
  static constexpr Port kOutputs[] = {{"dx"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  explicit GeluGrad(const Attributes& attributes) : tanh_(attributes.Int("tanh", 0, 1, /*fallback=*/0) != 0) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/1); }

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto x = context.Input<float>(1);
    RequireSameShape(dy, x);
    const auto dx = context.Output<float>(0, x.shape);
    const auto& kernels = kernels::Kernels().elementwise;
    const auto kernel = tanh_ ? kernels.gelu_tanh_grad : kernels.gelu_grad;
    context.ParallelFor(Blocks(x.size), [kernel, dy = dy.data, x = x.data, dx = dx.data](Block block) noexcept {
      kernel(block.end - block.begin, dy + block.begin, x + block.begin, dx + block.begin);
    });
  }

 private:
  bool tanh_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(Gelu)
SPARSYEDGE_DEFINE_OP(GeluGrad)

}  // namespace sparsyedge
