// Batch normalisation with the addition and the ReLU or ReLU6 that follow it in a net, in one pass over the output.
//
// One thread does a channel. It reads the planes twice, for the sums and for the result; the second time they come from
// L2: 64 KiB for a group of 32x32 images.
#include <cmath>
#include <numeric>

#include "../kernels/dispatch.h"
#include "lanes.h"

namespace sparsyedge {
namespace {

uint32_t LaneBits(size_t used) { return (uint32_t{1} << used) - 1; }

double Sum(const double (&lanes)[kLanes]) { return std::accumulate(lanes, lanes + kLanes, 0.0); }

// One 16-bit word per position, no halo.
Shape PositiveShape(const Lanes& lanes) {
  return {static_cast<int64_t>(lanes.groups), static_cast<int64_t>(lanes.channels), static_cast<int64_t>(lanes.height),
          static_cast<int64_t>(lanes.width), sizeof(uint16_t)};
}

// A tensor of planes, or none: absent inputs and outputs stay null pointers down to the kernel.
template <typename T>
struct Planes {
  T* data = nullptr;
  Lanes lanes{};

  T* Interior(size_t group, size_t channel) const {
    return data == nullptr ? nullptr : data + lanes.Interior(group, channel);
  }
  size_t stride() const { return lanes.RowStride(); }
};

// ---------------------------------------------------------------------------------------------------------------------

class BatchNormAct {
 public:
  static constexpr const char* kName = "BatchNormAct";
  static constexpr Port kInputs[] = {{"x"},
                                     {"gamma"},
                                     {"beta"},
                                     {"mean"},
                                     {"var"},
                                     {"batch", kElementType<int64_t>},
                                     {"residual", kElementType<float>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {
      {"y"},        {"saved_mean"}, {"saved_inv_std"},
      {"new_mean"}, {"new_var"},    {"positive", kElementType<uint8_t>, /*optional=*/true}};

  explicit BatchNormAct(const Attributes& attributes)
      : pad_in_(ReadHalo(attributes, "pad_in")),
        pad_out_(ReadHalo(attributes, "pad_out")),
        epsilon_(attributes.Float("epsilon", 1e-5f)),
        momentum_(attributes.Float("momentum", 0.1f)),
        cap_(attributes.Float("cap", INFINITY)),
        relu_(attributes.Int("relu", 0, 1) != 0) {
    if (!(epsilon_ > 0.0f)) throw OpError("attribute epsilon is " + ToString(epsilon_) + ", must be above 0");
    if (!(momentum_ >= 0.0f && momentum_ <= 1.0f)) {
      throw OpError("attribute momentum is " + ToString(momentum_) + ", must be from 0 to 1");
    }
    if (!(cap_ > 0.0f)) throw OpError("attribute cap is " + ToString(cap_) + ", must be above 0");
  }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    Run run{kernels::Kernels().norm, {x.data, LanesOf(x, pad_in_)}, {}, {}, nullptr, 0, {}, {}};
    const Lanes& lanes = run.x.lanes;
    run.batch = ReadBatch(context, 5, lanes);
    if (context.HasInput(6)) {
      const auto residual = context.Input<float>(6);
      run.residual = {residual.data, LanesLike(residual, lanes)};
    }
    for (size_t i = 0; i < 4; ++i) run.inputs[i] = ReadPerChannel(context, 1 + i, lanes).data;

    run.y.lanes = lanes;
    run.y.lanes.halo = pad_out_;
    run.y.data = context.Output<float>(0, ShapeOf(run.y.lanes)).data;
    for (size_t i = 0; i < 4; ++i) {
      run.outputs[i] = context.Output<float>(1 + i, {static_cast<int64_t>(lanes.channels)}).data;
    }
    if (relu_) run.positive = reinterpret_cast<uint16_t*>(context.Output<uint8_t>(5, PositiveShape(lanes)).data);

    ParallelChannels(context, lanes, [&](size_t channel) noexcept { Channel(run, channel); });
  }

 private:
  // Everything a channel needs.
  struct Run {
    const kernels::NormKernels& kernels;
    Planes<const float> x;
    Planes<const float> residual;
    Planes<float> y;
    uint16_t* positive;
    size_t batch;
    const float* inputs[4];  // gamma, beta, mean, var
    float* outputs[4];       // saved_mean, saved_inv_std, new_mean, new_var
  };

  void Channel(const Run& run, size_t channel) const noexcept {
    const auto [gamma, beta, old_mean, old_var] = run.inputs;
    const auto [saved_mean, saved_inv_std, new_mean, new_var] = run.outputs;
    const Moments moments = Measure(run, channel);
    const double inv_std = 1.0 / std::sqrt(moments.variance + epsilon_);

    saved_mean[channel] = static_cast<float>(moments.mean);
    saved_inv_std[channel] = static_cast<float>(inv_std);
    new_mean[channel] = Blend(old_mean[channel], moments.mean);
    new_var[channel] = Blend(old_var[channel], moments.variance * moments.unbiased);
    Normalise(run, channel, saved_mean[channel], static_cast<float>(gamma[channel] * inv_std), beta[channel]);
  }

  struct Moments {
    double mean;
    double variance;
    double unbiased;  // turns the variance over n into that over n - 1, as torch's running variance
  };

  static Moments Measure(const Run& run, size_t channel) noexcept {
    const Lanes& lanes = run.x.lanes;
    double sum[kLanes] = {};
    double square[kLanes] = {};
    for (size_t group = 0; group < lanes.groups; ++group) {
      run.kernels.sums(lanes.height, lanes.width, run.x.Interior(group, channel), run.x.stride(), sum, square);
    }
    const auto n = static_cast<double>(run.batch * lanes.Positions());
    const double mean = Sum(sum) / n;
    const double variance = Sum(square) / n - mean * mean;
    // Rounding may push a constant channel's variance below zero. A single value counts as variance 0.
    return {mean, variance < 0.0 ? 0.0 : variance, n > 1.0 ? n / (n - 1.0) : 1.0};
  }

  float Blend(float running, double measured) const {
    return static_cast<float>((1.0 - momentum_) * running + momentum_ * measured);
  }

  void Normalise(const Run& run, size_t channel, float mean, float scale, float shift) const noexcept {
    const Lanes& lanes = run.x.lanes;
    for (size_t group = 0; group < lanes.groups; ++group) {
      const size_t plane = group * lanes.channels + channel;
      ClearHalo(run.y.lanes, run.y.data + run.y.lanes.Plane(group, channel));
      run.kernels.forward({lanes.height, lanes.width, run.x.Interior(group, channel), run.x.stride(),
                           run.residual.Interior(group, channel), run.residual.stride(), run.y.Interior(group, channel),
                           run.y.stride(), run.positive == nullptr ? nullptr : run.positive + plane * lanes.Positions(),
                           mean, scale, shift, cap_, LaneBits(lanes.UsedLanes(group, run.batch))});
    }
  }

  size_t pad_in_;
  size_t pad_out_;
  float epsilon_;
  float momentum_;
  float cap_;  // of ReLU
  bool relu_;
};

// ---------------------------------------------------------------------------------------------------------------------

class BatchNormActGrad {
 public:
  static constexpr const char* kName = "BatchNormActGrad";
  static constexpr Port kInputs[] = {{"dy"},
                                     {"x"},
                                     {"gamma"},
                                     {"saved_mean"},
                                     {"saved_inv_std"},
                                     {"batch", kElementType<int64_t>},
                                     {"positive", kElementType<uint8_t>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {
      {"dx"}, {"dgamma"}, {"dbeta"}, {"dresidual", kElementType<float>, /*optional=*/true}};
  // If dx has the halo of dy: writing an element of dx is the last use of the same element of dy.
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  explicit BatchNormActGrad(const Attributes& attributes)
      : pad_in_(ReadHalo(attributes, "pad_in")),
        pad_out_(ReadHalo(attributes, "pad_out")),
        pad_residual_(ReadHalo(attributes, "pad_residual")) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(1);
    Run run{kernels::Kernels().norm, {}, {x.data, LanesOf(x, pad_in_)}, {}, {}, nullptr, 0, {}, {}};
    const Lanes& lanes = run.x.lanes;
    const auto dy = context.Input<float>(0);
    run.dy = {dy.data, LanesLike(dy, lanes)};
    for (size_t i = 0; i < 3; ++i) run.inputs[i] = ReadPerChannel(context, 2 + i, lanes).data;
    run.batch = ReadBatch(context, 5, lanes);
    if (context.HasInput(6)) run.positive = ReadPositive(context, lanes);

    run.dx.lanes = run.dresidual.lanes = lanes;
    run.dx.lanes.halo = pad_out_;
    run.dx.data = context.Output<float>(0, ShapeOf(run.dx.lanes)).data;
    for (size_t i = 0; i < 2; ++i) {
      run.outputs[i] = context.Output<float>(1 + i, {static_cast<int64_t>(lanes.channels)}).data;
    }
    run.dresidual.lanes.halo = pad_residual_;
    if (auto dresidual = context.OptionalOutput<float>(3, ShapeOf(run.dresidual.lanes))) {
      run.dresidual.data = dresidual->data;
    }

    ParallelChannels(context, lanes, [&](size_t channel) noexcept { Channel(run, channel); });
  }

 private:
  struct Run {
    const kernels::NormKernels& kernels;
    Planes<const float> dy;
    Planes<const float> x;
    Planes<float> dx;
    Planes<float> dresidual;
    const uint16_t* positive;
    size_t batch;
    const float* inputs[3];  // gamma, saved_mean, saved_inv_std
    float* outputs[2];       // dgamma, dbeta
  };

  static const uint16_t* ReadPositive(const Context& context, const Lanes& lanes) {
    const auto positive = context.Input<uint8_t>(6);
    if (positive.shape != PositiveShape(lanes)) {
      throw OpError("positive has shape " + ToString(positive.shape) + ", must be " + ToString(PositiveShape(lanes)));
    }
    return reinterpret_cast<const uint16_t*>(positive.data);
  }

  static void Channel(const Run& run, size_t channel) noexcept {
    const auto [gamma, saved_mean, saved_inv_std] = run.inputs;
    const auto [dgamma, dbeta] = run.outputs;
    const Lanes& lanes = run.x.lanes;
    const double inv_std = saved_inv_std[channel];
    const auto n = static_cast<double>(run.batch * lanes.Positions());

    double sum[kLanes] = {};
    double product[kLanes] = {};
    for (size_t group = 0; group < lanes.groups; ++group) {
      if (run.dresidual.data != nullptr) {
        ClearHalo(run.dresidual.lanes, run.dresidual.data + run.dresidual.lanes.Plane(group, channel));
      }
      run.kernels.backward_sums(PlaneOf(run, group, channel, saved_mean[channel]), sum, product);
    }
    dbeta[channel] = static_cast<float>(Sum(sum));
    dgamma[channel] = static_cast<float>(Sum(product) * inv_std);

    for (size_t group = 0; group < lanes.groups; ++group) {
      kernels::NormBackward plane = PlaneOf(run, group, channel, saved_mean[channel]);
      plane.dy_mean = static_cast<float>(Sum(sum) / n);
      plane.dy_slope = static_cast<float>(Sum(product) / n * inv_std * inv_std);
      plane.scale = static_cast<float>(gamma[channel] * inv_std);
      if (run.dx.data != run.dy.data) ClearHalo(run.dx.lanes, run.dx.data + run.dx.lanes.Plane(group, channel));
      run.kernels.backward(plane);
    }
  }

  static kernels::NormBackward PlaneOf(const Run& run, size_t group, size_t channel, float mean) noexcept {
    const Lanes& lanes = run.x.lanes;
    kernels::NormBackward plane{};
    plane.height = lanes.height;
    plane.width = lanes.width;
    plane.dy = run.dy.Interior(group, channel);
    plane.dy_stride = run.dy.stride();
    plane.x = run.x.Interior(group, channel);
    plane.x_stride = run.x.stride();
    if (run.positive != nullptr) {
      plane.positive = run.positive + (group * lanes.channels + channel) * lanes.Positions();
    }
    plane.dx = run.dx.Interior(group, channel);
    plane.dx_stride = run.dx.stride();
    plane.dresidual = run.dresidual.Interior(group, channel);
    plane.dresidual_stride = run.dresidual.stride();
    plane.mean = mean;
    plane.used_lanes = LaneBits(lanes.UsedLanes(group, run.batch));
    return plane;
  }

  size_t pad_in_;
  size_t pad_out_;
  size_t pad_residual_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(BatchNormAct)
SPARSYEDGE_DEFINE_OP(BatchNormActGrad)

}  // namespace sparsyedge
