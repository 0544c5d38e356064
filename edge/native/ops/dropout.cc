// Dropout by a counter: whether an element stays depends on seed, stream and its position alone. The gradient is the
// same op on dy, and no mask is kept.
//
// A tensor is cut into segments of 65536 elements. Seed, stream and the segment's number give it a key of 64 bits; key
// and position give an element 32 bits (kernels/elementwise.inc). All of it is integer arithmetic that wraps around, so
// the mask is the same on every machine; tests/fixtures/op_cases/dropout.py repeats it in numpy.
#include "../kernels/dispatch.h"
#include "../op.h"

namespace sparsyedge {
namespace {

constexpr size_t kSegment = 65536;

// The finaliser of splitmix64.
uint64_t Mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

uint64_t SegmentKey(uint64_t seed, uint64_t stream, uint64_t segment) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  return Mix(Mix(Mix(seed + kStep) + (stream + 1) * kStep) + (segment + 1) * kStep);
}

class Dropout {
 public:
  static constexpr const char* kName = "Dropout";
  static constexpr Port kInputs[] = {{"x"}, {"seed", kElementType<int64_t>}};
  static constexpr Port kOutputs[] = {{"y"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  explicit Dropout(const Attributes& attributes)
      : stream_(static_cast<uint64_t>(attributes.Int("stream", 0, INT32_MAX))), ratio_(attributes.Float("ratio")) {
    if (!(ratio_ >= 0.0f && ratio_ < 1.0f)) {
      throw OpError("attribute ratio is " + ToString(ratio_) + ", must be at least 0 and below 1");
    }
  }

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto seed = context.Input<int64_t>(1);
    if (seed.size != 1) throw OpError("seed has shape " + ToString(seed.shape) + ", must hold exactly 1 value");
    const auto y = context.Output<float>(0, x.shape);
    const auto kernel = kernels::Kernels().elementwise.dropout;
    const auto key_seed = static_cast<uint64_t>(seed.data[0]);
    context.ParallelFor(Blocks(x.size), [this, kernel, key_seed, x = x.data, y = y.data](Block block) noexcept {
      for (size_t begin = block.begin; begin < block.end;) {
        const size_t segment = begin / kSegment;
        const size_t end = std::min(block.end, (segment + 1) * kSegment);
        const kernels::DropoutRun run{end - begin, SegmentKey(key_seed, stream_, segment),
                                      static_cast<uint32_t>(begin % kSegment), Threshold(), Scale()};
        kernel(run, x + begin, y + begin);
        begin = end;
      }
    });
  }

 private:
  uint32_t Threshold() const { return static_cast<uint32_t>(static_cast<double>(ratio_) * 4294967296.0); }
  float Scale() const { return static_cast<float>(1.0 / (1.0 - static_cast<double>(ratio_))); }

  uint64_t stream_;
  float ratio_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(Dropout)

}  // namespace sparsyedge
