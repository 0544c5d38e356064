// Batch normalisation of plain tensors [N, C, ...] in training, and its gradient.
//
// One thread does a channel. It reads the planes twice, for the sums and for the result; the second time they come from
// L2. Without planes, [N, C], one thread does it all: such tensors are small.
#include <cmath>
#include <numeric>

#include "../kernels/dispatch.h"
#include "lanes.h"

namespace sparsyedge {
namespace {

struct Channels {
  size_t batch, channels, plane;

  size_t Values() const { return batch * plane; }  // per channel
  kernels::ChannelPlanes Planes() const { return {batch, plane, channels * plane}; }
};

// Throws unless the tensor is [N, C, ...] with enough values to have a variance.
Channels ChannelsOf(const Tensor<const float>& x) {
  if (x.shape.size() < 2 || x.shape.size() > 5 || x.size == 0) {
    throw OpError(std::string(x.name) + " has shape " + ToString(x.shape) +
                  ", must be [N,C] or [N,C,...] with up to 3 more axes and no empty dimension");
  }
  const auto batch = static_cast<size_t>(x.shape[0]);
  const auto channels = static_cast<size_t>(x.shape[1]);
  const Channels found{batch, channels, x.size / (batch * channels)};
  if (found.Values() == 1) {
    throw OpError(std::string(x.name) + " has shape " + ToString(x.shape) +
                  ", which is one value per channel and has no variance; train with a batch of at least 2");
  }
  return found;
}

const float* ReadChannelVector(const Context& context, size_t input, const Channels& x) {
  const auto tensor = context.Input<float>(input);
  if (tensor.shape != Shape{static_cast<int64_t>(x.channels)}) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", must be [" +
                  std::to_string(x.channels) + "], one value per channel");
  }
  return tensor.data;
}

float* WriteChannelVector(const Context& context, size_t output, const Channels& x) {
  return context.Output<float>(output, {static_cast<int64_t>(x.channels)}).data;
}

double Sum(const double (&lanes)[kLanes]) { return std::accumulate(lanes, lanes + kLanes, 0.0); }

// ---------------------------------------------------------------------------------------------------------------------

class BatchNormTrain {
 public:
  static constexpr const char* kName = "BatchNormTrain";
  static constexpr Port kInputs[] = {{"x"}, {"gamma"}, {"beta"}, {"mean"}, {"var"}};
  static constexpr Port kOutputs[] = {{"y"}, {"saved_mean"}, {"saved_inv_std"}, {"new_mean"}, {"new_var"}};

  explicit BatchNormTrain(const Attributes& attributes)
      : epsilon_(attributes.Float("epsilon", 1e-5f)), momentum_(attributes.Float("momentum", 0.1f)) {
    if (!(epsilon_ > 0.0f)) throw OpError("attribute epsilon is " + ToString(epsilon_) + ", must be above 0");
    if (!(momentum_ >= 0.0f && momentum_ <= 1.0f)) {
      throw OpError("attribute momentum is " + ToString(momentum_) + ", must be from 0 to 1");
    }
  }

  static void InferShapes(const ShapeContext& shapes) {
    shapes.SameAsInput(/*output=*/0, /*input=*/0);
    for (size_t output = 1; output < 5; ++output) shapes.SameAsInput(output, /*input=*/1);
  }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    Run run{ChannelsOf(x), x.data, nullptr, {}, {}};
    for (size_t i = 0; i < 4; ++i) run.inputs[i] = ReadChannelVector(context, 1 + i, run.of);
    run.y = context.Output<float>(0, x.shape).data;
    for (size_t i = 0; i < 4; ++i) run.outputs[i] = WriteChannelVector(context, 1 + i, run.of);
    if (run.of.plane == 1) return Columns(run);

    const auto& kernels = kernels::Kernels().planes;
    ParallelParts(context, run.of.channels, run.of.Values(), [&](size_t channel) noexcept {
      const size_t first = channel * run.of.plane;
      double sum[kLanes], square[kLanes];
      kernels.sums(run.of.Planes(), run.x + first, sum, square);
      const Affine affine = Finish(run, channel, Sum(sum), Sum(square));
      kernels.normalise(run.of.Planes(), run.x + first, affine.mean, affine.scale, affine.shift, run.y + first);
    });
  }

 private:
  struct Run {
    Channels of;
    const float* x;
    float* y;
    const float* inputs[4];  // gamma, beta, mean, var
    float* outputs[4];       // saved_mean, saved_inv_std, new_mean, new_var
  };

  // y = (x - mean) * scale + shift
  struct Affine {
    float mean, scale, shift;
  };

  // Writes a channel's statistics.
  Affine Finish(const Run& run, size_t channel, double sum, double square) const noexcept {
    const auto [gamma, beta, old_mean, old_var] = run.inputs;
    const auto [saved_mean, saved_inv_std, new_mean, new_var] = run.outputs;
    const auto n = static_cast<double>(run.of.Values());
    const double mean = sum / n;
    const double difference = square / n - mean * mean;
    const double variance = difference < 0.0 ? 0.0 : difference;  // rounding may push a constant channel's below zero
    const double inv_std = 1.0 / std::sqrt(variance + epsilon_);
    saved_mean[channel] = static_cast<float>(mean);
    saved_inv_std[channel] = static_cast<float>(inv_std);
    new_mean[channel] = Blend(old_mean[channel], mean);
    new_var[channel] = Blend(old_var[channel], variance * (n / (n - 1.0)));
    return {saved_mean[channel], static_cast<float>(gamma[channel] * inv_std), beta[channel]};
  }

  float Blend(float running, double measured) const {
    return static_cast<float>((1.0 - momentum_) * running + momentum_ * measured);
  }

  void Columns(const Run& run) const {
    const auto& kernels = kernels::Kernels().planes;
    const size_t channels = run.of.channels;
    std::vector<double> sum(channels), square(channels);
    kernels.column_sums(run.of.batch, channels, run.x, sum.data(), square.data());
    std::vector<float> mean(channels), scale(channels), shift(channels);
    for (size_t c = 0; c < channels; ++c) {
      const Affine affine = Finish(run, c, sum[c], square[c]);
      mean[c] = affine.mean;
      scale[c] = affine.scale;
      shift[c] = affine.shift;
    }
    kernels.column_normalise(run.of.batch, channels, run.x, mean.data(), scale.data(), shift.data(), run.y);
  }

  float epsilon_;
  float momentum_;
};

// ---------------------------------------------------------------------------------------------------------------------

class BatchNormTrainGrad {
 public:
  static constexpr const char* kName = "BatchNormTrainGrad";
  static constexpr Port kInputs[] = {{"dy"}, {"x"}, {"gamma"}, {"saved_mean"}, {"saved_inv_std"}};
  static constexpr Port kOutputs[] = {{"dx"}, {"dgamma"}, {"dbeta"}};
  // Writing an element of dx is the last use of the same element of dy.
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  static void InferShapes(const ShapeContext& shapes) {
    shapes.SameAsInput(/*output=*/0, /*input=*/1);
    for (size_t output = 1; output < 3; ++output) shapes.SameAsInput(output, /*input=*/2);
  }

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto x = context.Input<float>(1);
    RequireSameShape(dy, x);
    Run run{ChannelsOf(x), dy.data, x.data, nullptr, {}, {}};
    for (size_t i = 0; i < 3; ++i) run.inputs[i] = ReadChannelVector(context, 2 + i, run.of);
    run.dx = context.Output<float>(0, x.shape).data;
    for (size_t i = 0; i < 2; ++i) run.outputs[i] = WriteChannelVector(context, 1 + i, run.of);
    if (run.of.plane == 1) return Columns(run);

    const auto& kernels = kernels::Kernels().planes;
    ParallelParts(context, run.of.channels, 2 * run.of.Values(), [&](size_t channel) noexcept {
      const size_t first = channel * run.of.plane;
      const float mean = run.inputs[1][channel];
      double sum[kLanes], product[kLanes];
      kernels.grad_sums(run.of.Planes(), run.dy + first, run.x + first, mean, sum, product);
      const Slope slope = Finish(run, channel, Sum(sum), Sum(product));
      kernels.grad(run.of.Planes(),
                   {run.dy + first, run.x + first, run.dx + first, mean, slope.dy_mean, slope.dy_slope, slope.scale});
    });
  }

 private:
  struct Run {
    Channels of;
    const float* dy;
    const float* x;
    float* dx;
    const float* inputs[3];  // gamma, saved_mean, saved_inv_std
    float* outputs[2];       // dgamma, dbeta
  };

  // dx = (dy - dy_mean - (x - mean) * dy_slope) * scale
  struct Slope {
    float dy_mean, dy_slope, scale;
  };

  // Writes a channel's dgamma and dbeta.
  static Slope Finish(const Run& run, size_t channel, double sum, double product) noexcept {
    const auto [gamma, saved_mean, saved_inv_std] = run.inputs;
    const auto [dgamma, dbeta] = run.outputs;
    const auto n = static_cast<double>(run.of.Values());
    const double inv_std = saved_inv_std[channel];
    dgamma[channel] = static_cast<float>(product * inv_std);
    dbeta[channel] = static_cast<float>(sum);
    return {static_cast<float>(sum / n), static_cast<float>(product / n * inv_std * inv_std),
            static_cast<float>(gamma[channel] * inv_std)};
  }

  static void Columns(const Run& run) {
    const auto& kernels = kernels::Kernels().planes;
    const size_t channels = run.of.channels;
    const float* mean = run.inputs[1];
    std::vector<double> sum(channels), product(channels);
    kernels.column_grad_sums(run.of.batch, channels, run.dy, run.x, mean, sum.data(), product.data());
    std::vector<float> dy_mean(channels), dy_slope(channels), scale(channels);
    for (size_t c = 0; c < channels; ++c) {
      const Slope slope = Finish(run, c, sum[c], product[c]);
      dy_mean[c] = slope.dy_mean;
      dy_slope[c] = slope.dy_slope;
      scale[c] = slope.scale;
    }
    kernels.column_grad(run.of.batch, channels,
                        {run.dy, run.x, run.dx, mean, dy_mean.data(), dy_slope.data(), scale.data()});
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(BatchNormTrain)
SPARSYEDGE_DEFINE_OP(BatchNormTrainGrad)

}  // namespace sparsyedge
