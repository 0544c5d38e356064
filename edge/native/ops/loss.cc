// Mean cross-entropy over the batch, and its gradient with respect to the logits.
#include <cmath>

#include "lanes.h"

namespace sparsyedge {
namespace {

size_t RequireLabels(const Tensor<const int64_t>& labels, const Lanes& lanes) {
  if (labels.shape.size() != 1 || (labels.size + kLanes - 1) / kLanes != lanes.groups) {
    throw OpError("labels has shape " + ToString(labels.shape) +
                  ", must be [N] with ceil(N/16) = " + std::to_string(lanes.groups) + " groups as in logits");
  }
  for (size_t i = 0; i < labels.size; ++i) {
    if (labels.data[i] < 0 || labels.data[i] >= static_cast<int64_t>(lanes.channels)) {
      throw OpError("labels[" + std::to_string(i) + "] is " + std::to_string(labels.data[i]) + ", must be from 0 to " +
                    std::to_string(lanes.channels - 1));
    }
  }
  return labels.size;
}

// The loss of one image, whose logits are 16 floats apart. In double, because it is summed over the batch.
double ImageLoss(const float* logits, size_t classes, size_t label, double scale, float* gradient) {
  float largest = logits[0];
  for (size_t c = 1; c < classes; ++c) largest = std::max(largest, logits[c * kLanes]);
  double sum = 0.0;
  for (size_t c = 0; c < classes; ++c) sum += std::exp(double{logits[c * kLanes]} - largest);
  for (size_t c = 0; c < classes; ++c) {
    const double probability = std::exp(double{logits[c * kLanes]} - largest) / sum;
    gradient[c * kLanes] = static_cast<float>(scale * (probability - (c == label ? 1.0 : 0.0)));
  }
  return std::log(sum) + largest - logits[label * kLanes];
}

struct SoftmaxLoss {
  static constexpr const char* kName = "SoftmaxLoss";
  static constexpr Port kInputs[] = {{"logits"}, {"labels", kElementType<int64_t>}};
  static constexpr Port kOutputs[] = {{"loss"}, {"dlogits"}};

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/1, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto logits = context.Input<float>(0);
    const auto labels = context.Input<int64_t>(1);
    const Lanes lanes = LanesOf(logits, /*halo=*/0);
    if (lanes.Positions() != 1) {
      throw OpError("logits has shape " + ToString(logits.shape) + ", must be [G,C,1,1,16]");
    }
    const size_t batch = RequireLabels(labels, lanes);
    const auto loss = context.Output<float>(0, {1});
    const auto dlogits = context.Output<float>(1, logits.shape);

    std::memset(dlogits.data, 0, dlogits.size * sizeof(float));
    double total = 0.0;
    for (size_t image = 0; image < batch; ++image) {
      const size_t first = lanes.Plane(image / kLanes, 0) + image % kLanes;
      total += ImageLoss(logits.data + first, lanes.channels, static_cast<size_t>(labels.data[image]),
                         1.0 / static_cast<double>(batch), dlogits.data + first);
    }
    loss.data[0] = static_cast<float>(total / static_cast<double>(batch));
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SoftmaxLoss)

}  // namespace sparsyedge
