// Mean cross-entropy over the batch, and its gradient with respect to the logits.
#include <cmath>

#include "lanes.h"

namespace sparsyedge {
namespace {

size_t RequireLabels(const Tensor<const int64_t>& labels, const Lanes& lanes) {
  if (labels.shape.size() != 1 || (labels.size + kLanes - 1) / kLanes != lanes.groups) {
    throw OpError(std::string(labels.name) + " has shape " + ToString(labels.shape) +
                  ", must be [N] with ceil(N/16) = " + std::to_string(lanes.groups) + " groups as in logits");
  }
  for (size_t i = 0; i < labels.size; ++i) {
    if (labels.data[i] < 0 || labels.data[i] >= static_cast<int64_t>(lanes.channels)) {
      throw OpError(std::string(labels.name) + "[" + std::to_string(i) + "] is " + std::to_string(labels.data[i]) +
                    ", must be from 0 to " + std::to_string(lanes.channels - 1));
    }
  }
  return labels.size;
}

// What an image should be: `share` of one label and the rest of another, and `smoothing` of that of every class alike.
struct Target {
  size_t label;
  size_t other;
  double share;
  double smoothing;

  double Of(size_t c, size_t classes) const {
    const double mixed = (c == label ? share : 0.0) + (c == other ? 1.0 - share : 0.0);
    return (1.0 - smoothing) * mixed + smoothing / static_cast<double>(classes);
  }
};

// The loss of one image, whose logits are 16 floats apart. In double, because it is summed over the batch.
double ImageLoss(const float* logits, size_t classes, const Target& target, double scale, float* gradient) {
  float largest = logits[0];
  for (size_t c = 1; c < classes; ++c) largest = std::max(largest, logits[c * kLanes]);
  double sum = 0.0;
  for (size_t c = 0; c < classes; ++c) sum += std::exp(double{logits[c * kLanes]} - largest);
  for (size_t c = 0; c < classes; ++c) {
    const double probability = std::exp(double{logits[c * kLanes]} - largest) / sum;
    gradient[c * kLanes] = static_cast<float>(scale * (probability - target.Of(c, classes)));
  }
  const double log_sum = std::log(sum) + largest;
  if (target.share == 1.0 && target.smoothing == 0.0) return log_sum - logits[target.label * kLanes];
  double loss = 0.0;
  for (size_t c = 0; c < classes; ++c) loss += target.Of(c, classes) * (log_sum - logits[c * kLanes]);
  return loss;
}

double ReadSmoothing(const Attributes& attributes) {
  const float smoothing = attributes.Float("smoothing", 0.0f);
  if (!(smoothing >= 0.0f && smoothing < 1.0f)) {
    throw OpError("smoothing is " + ToString(smoothing) + ", must be at least 0 and below 1");
  }
  return smoothing;
}

// The mean over the batch; target_of(image) says what an image should be.
template <typename TargetOf>
void MeanLoss(const Context& context, const Tensor<const float>& logits, const Lanes& lanes, size_t batch,
              const TargetOf& target_of) {
  const auto loss = context.Output<float>(0, {1});
  const auto dlogits = context.Output<float>(1, logits.shape);
  std::memset(dlogits.data, 0, dlogits.size * sizeof(float));
  double total = 0.0;
  for (size_t image = 0; image < batch; ++image) {
    const size_t first = lanes.Plane(image / kLanes, 0) + image % kLanes;
    total += ImageLoss(logits.data + first, lanes.channels, target_of(image), 1.0 / static_cast<double>(batch),
                       dlogits.data + first);
  }
  loss.data[0] = static_cast<float>(total / static_cast<double>(batch));
}

Lanes LogitLanes(const Tensor<const float>& logits) {
  const Lanes lanes = LanesOf(logits, /*halo=*/0);
  if (lanes.Positions() != 1) {
    throw OpError("logits has shape " + ToString(logits.shape) + ", must be [G,C,1,1,16]");
  }
  return lanes;
}

struct SoftmaxLoss {
  static constexpr const char* kName = "SoftmaxLoss";
  static constexpr Port kInputs[] = {{"logits"}, {"labels", kElementType<int64_t>}};
  static constexpr Port kOutputs[] = {{"loss"}, {"dlogits"}};

  explicit SoftmaxLoss(const Attributes& attributes) : smoothing(ReadSmoothing(attributes)) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/1, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto logits = context.Input<float>(0);
    const auto labels = context.Input<int64_t>(1);
    const Lanes lanes = LogitLanes(logits);
    const size_t batch = RequireLabels(labels, lanes);
    MeanLoss(context, logits, lanes, batch, [this, labels = labels.data](size_t image) {
      const auto label = static_cast<size_t>(labels[image]);
      return Target{label, label, 1.0, smoothing};
    });
  }

  double smoothing;
};

// Mixup: every image is a mixture of two, `mix` of the first.
struct SoftmaxLossMixed {
  static constexpr const char* kName = "SoftmaxLossMixed";
  static constexpr Port kInputs[] = {
      {"logits"}, {"labels", kElementType<int64_t>}, {"labels_mixed", kElementType<int64_t>}, {"mix"}};
  static constexpr Port kOutputs[] = {{"loss"}, {"dlogits"}};

  explicit SoftmaxLossMixed(const Attributes& attributes) : smoothing(ReadSmoothing(attributes)) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/1, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto logits = context.Input<float>(0);
    const auto labels = context.Input<int64_t>(1);
    const auto others = context.Input<int64_t>(2);
    const float mix = context.Scalar(3);
    if (!(mix >= 0.0f && mix <= 1.0f)) throw OpError("mix is " + ToString(mix) + ", must be from 0 to 1");
    const Lanes lanes = LogitLanes(logits);
    const size_t batch = RequireLabels(labels, lanes);
    RequireLabels(others, lanes);
    RequireSameShape(others, labels);
    MeanLoss(context, logits, lanes, batch, [this, mix, labels = labels.data, others = others.data](size_t image) {
      return Target{static_cast<size_t>(labels[image]), static_cast<size_t>(others[image]), mix, smoothing};
    });
  }

  double smoothing;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SoftmaxLoss)
SPARSYEDGE_DEFINE_OP(SoftmaxLossMixed)

}  // namespace sparsyedge
