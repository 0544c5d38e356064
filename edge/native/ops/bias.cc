// The bias of a linear layer: one value per channel, the same at every position.
#include <numeric>

#include "lanes.h"

namespace sparsyedge {
namespace {

class AddBias {
 public:
  static constexpr const char* kName = "AddBias";
  static constexpr Port kInputs[] = {{"x"}, {"bias"}, {"batch", kElementType<int64_t>}};
  static constexpr Port kOutputs[] = {{"y"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  explicit AddBias(const Attributes& attributes) : pad_in_(ReadHalo(attributes, "pad_in")) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const Lanes lanes = LanesOf(x, pad_in_);
    const auto bias = ReadPerChannel(context, 1, lanes);
    const size_t batch = ReadBatch(context, 2, lanes);
    const auto y = context.Output<float>(0, x.shape);

    ParallelChannels(context, lanes, [&, bias = bias.data, x = x.data, y = y.data](size_t channel) noexcept {
      for (size_t group = 0; group < lanes.groups; ++group) {
        ClearHalo(lanes, y + lanes.Plane(group, channel));
        // Unused lanes are zero before and after.
        float lane_bias[kLanes] = {};
        std::fill_n(lane_bias, lanes.UsedLanes(group, batch), bias[channel]);
        ForEachPosition(lanes, lanes.Interior(group, channel), [&](size_t at) {
          for (size_t lane = 0; lane < kLanes; ++lane) y[at + lane] = x[at + lane] + lane_bias[lane];
        });
      }
    });
  }

 private:
  size_t pad_in_;
};

class AddBiasGrad {
 public:
  static constexpr const char* kName = "AddBiasGrad";
  static constexpr Port kInputs[] = {{"dy"}};
  static constexpr Port kOutputs[] = {{"dbias"}};

  explicit AddBiasGrad(const Attributes& attributes) : pad_in_(ReadHalo(attributes, "pad_in")) {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const Lanes lanes = LanesOf(dy, pad_in_);
    const auto dbias = context.Output<float>(0, {static_cast<int64_t>(lanes.channels)});

    ParallelChannels(context, lanes, [&, dy = dy.data, dbias = dbias.data](size_t channel) noexcept {
      double sum[kLanes] = {};
      for (size_t group = 0; group < lanes.groups; ++group) {
        ForEachPosition(lanes, lanes.Interior(group, channel), [&](size_t at) {
          for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += double{dy[at + lane]};
        });
      }
      dbias[channel] = static_cast<float>(std::accumulate(sum, sum + kLanes, 0.0));
    });
  }

 private:
  size_t pad_in_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(AddBias)
SPARSYEDGE_DEFINE_OP(AddBiasGrad)

}  // namespace sparsyedge
