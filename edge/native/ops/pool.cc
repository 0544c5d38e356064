// Pooling: the mean over a whole plane, and the maximum over windows.
#include <cmath>

#include "lanes.h"

namespace sparsyedge {
namespace {

class MeanPool {
 public:
  static constexpr const char* kName = "MeanPool";
  static constexpr Port kInputs[] = {{"x"}};
  static constexpr Port kOutputs[] = {{"y"}};

  explicit MeanPool(const Attributes& attributes) : pad_in_(ReadHalo(attributes, "pad_in")) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const Lanes from = LanesOf(x, pad_in_);
    const Lanes to{from.groups, from.channels, 1, 1, 0};
    const auto y = context.Output<float>(0, ShapeOf(to));

    ParallelChannels(context, from, [&, x = x.data, y = y.data](size_t channel) noexcept {
      for (size_t group = 0; group < from.groups; ++group) {
        double sum[kLanes] = {};
        ForEachPosition(from, from.Interior(group, channel), [&](size_t at) {
          for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += double{x[at + lane]};
        });
        float* mean = y + to.Plane(group, channel);
        for (size_t lane = 0; lane < kLanes; ++lane) {
          mean[lane] = static_cast<float>(sum[lane] / static_cast<double>(from.Positions()));
        }
      }
    });
  }

 private:
  size_t pad_in_;
};

class MeanPoolGrad {
 public:
  static constexpr const char* kName = "MeanPoolGrad";
  static constexpr Port kInputs[] = {{"dy"}};
  static constexpr Port kOutputs[] = {{"dx"}};

  explicit MeanPoolGrad(const Attributes& attributes)
      : height_(static_cast<size_t>(attributes.Int("in_h", 1, INT32_MAX))),
        width_(static_cast<size_t>(attributes.Int("in_w", 1, INT32_MAX))),
        pad_out_(ReadHalo(attributes, "pad_out")) {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const Lanes from = LanesOf(dy, /*halo=*/0);
    if (from.Positions() != 1) throw OpError("dy has shape " + ToString(dy.shape) + ", must be [G,C,1,1,16]");
    const Lanes to{from.groups, from.channels, height_, width_, pad_out_};
    const auto dx = context.Output<float>(0, ShapeOf(to));

    ParallelChannels(context, to, [&, dy = dy.data, dx = dx.data](size_t channel) noexcept {
      for (size_t group = 0; group < to.groups; ++group) {
        float share[kLanes];
        const float* gradient = dy + from.Plane(group, channel);
        for (size_t lane = 0; lane < kLanes; ++lane) {
          share[lane] = gradient[lane] / static_cast<float>(to.Positions());
        }
        ClearHalo(to, dx + to.Plane(group, channel));
        ForEachPosition(to, to.Interior(group, channel),
                        [&](size_t at) { std::memcpy(dx + at, share, sizeof(share)); });
      }
    });
  }

 private:
  size_t height_;
  size_t width_;
  size_t pad_out_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Maximum over square windows

// Numbers the taps of a window row by row, and remembers a maximum by its tap, in one byte.
class Window {
 public:
  explicit Window(const Attributes& attributes)
      : kernel_(static_cast<size_t>(attributes.Int("kernel", 1, kMaxKernel))),
        stride_(static_cast<size_t>(attributes.Int("stride", 1, kMaxKernel))),
        pad_(static_cast<size_t>(attributes.Int("pad", 0, static_cast<int64_t>(kernel_ / 2)))) {}

  // The extents after pooling. Throws if no window fits.
  Lanes Pooled(const Lanes& from, size_t halo) const {
    if (from.height + 2 * pad_ < kernel_ || from.width + 2 * pad_ < kernel_) {
      throw OpError("a plane of " + std::to_string(from.height) + " x " + std::to_string(from.width) +
                    " is smaller than the window, kernel " + std::to_string(kernel_) + " with pad " +
                    std::to_string(pad_));
    }
    return {from.groups, from.channels, (from.height + 2 * pad_ - kernel_) / stride_ + 1,
            (from.width + 2 * pad_ - kernel_) / stride_ + 1, halo};
  }

  // Calls body(tap, offset) for the taps of window (row, column) that lie inside the plane at `interior`.
  template <typename Body>
  void ForEachTap(const Lanes& plane, size_t interior, size_t row, size_t column, const Body& body) const {
    for (size_t i = 0; i < kernel_; ++i) {
      const size_t y = row * stride_ + i - pad_;  // wraps to a huge number if above the plane
      if (y >= plane.height) continue;
      for (size_t j = 0; j < kernel_; ++j) {
        const size_t x = column * stride_ + j - pad_;
        const auto tap = static_cast<int32_t>(i * kernel_ + j);
        if (x < plane.width) body(tap, interior + y * plane.RowStride() + x * kLanes);
      }
    }
  }

  // A window's first tap inside the plane; it wins if all values are -inf.
  int32_t FirstTap(size_t row, size_t column) const {
    const size_t above = row * stride_ < pad_ ? pad_ - row * stride_ : 0;
    const size_t left = column * stride_ < pad_ ? pad_ - column * stride_ : 0;
    return static_cast<int32_t>(above * kernel_ + left);
  }

 private:
  static constexpr int64_t kMaxKernel = 15;  // tap numbers fit a byte

  size_t kernel_;
  size_t stride_;
  size_t pad_;
};

Shape TapShape(const Lanes& pooled) {
  Lanes without_halo = pooled;
  without_halo.halo = 0;
  return ShapeOf(without_halo);
}

// GCC's and Clang's portable vector of four lanes; neither vectorises this comparison on its own.
using FourFloats = float __attribute__((vector_size(16)));
using FourInts = int32_t __attribute__((vector_size(16)));

// The running maximum of one window in 16 images. As in torch, NaN wins, and of equals the first in row-major order.
class Maximum {
 public:
  explicit Maximum(int32_t first_tap) {
    for (FourFloats& four : values_) four = FourFloats{} - INFINITY;
    for (FourInts& four : taps_) four = FourInts{} + first_tap;
  }

  void Take(const float* x, int32_t tap) {
    for (size_t i = 0; i < kFours; ++i) {
      FourFloats four;
      std::memcpy(&four, x + 4 * i, sizeof(four));
      const FourInts larger = (four > values_[i]) | (four != four);
      values_[i] = larger ? four : values_[i];
      taps_[i] = larger ? FourInts{} + tap : taps_[i];
    }
  }

  void Store(float* values, uint8_t* taps) const {
    std::memcpy(values, values_, sizeof(values_));
    for (size_t lane = 0; lane < kLanes; ++lane) taps[lane] = static_cast<uint8_t>(taps_[lane / 4][lane % 4]);
  }

 private:
  static constexpr size_t kFours = kLanes / 4;

  FourFloats values_[kFours];
  FourInts taps_[kFours];
};

class MaxPool {
 public:
  static constexpr const char* kName = "MaxPool";
  static constexpr Port kInputs[] = {{"x"}};
  static constexpr Port kOutputs[] = {{"y"}, {"argmax", kElementType<uint8_t>}};

  explicit MaxPool(const Attributes& attributes)
      : window_(attributes), pad_in_(ReadHalo(attributes, "pad_in")), pad_out_(ReadHalo(attributes, "pad_out")) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const Lanes from = LanesOf(x, pad_in_);
    const Lanes to = window_.Pooled(from, pad_out_);
    const auto y = context.Output<float>(0, ShapeOf(to));
    const auto argmax = context.Output<uint8_t>(1, TapShape(to));

    ParallelChannels(context, from, [&, x = x.data, y = y.data, argmax = argmax.data](size_t channel) noexcept {
      for (size_t group = 0; group < from.groups; ++group) {
        const size_t plane = group * to.channels + channel;
        ClearHalo(to, y + to.Plane(group, channel));
        Plane(from, x, from.Interior(group, channel), to, y + to.Interior(group, channel),
              argmax + plane * to.Positions() * kLanes);
      }
    });
  }

 private:
  void Plane(const Lanes& from, const float* x, size_t interior, const Lanes& to, float* y, uint8_t* taps) const {
    for (size_t row = 0; row < to.height; ++row) {
      for (size_t column = 0; column < to.width; ++column, taps += kLanes) {
        Maximum maximum(window_.FirstTap(row, column));
        window_.ForEachTap(from, interior, row, column, [&](int32_t tap, size_t at) { maximum.Take(x + at, tap); });
        maximum.Store(y + row * to.RowStride() + column * kLanes, taps);
      }
    }
  }

  Window window_;
  size_t pad_in_;
  size_t pad_out_;
};

class MaxPoolGrad {
 public:
  static constexpr const char* kName = "MaxPoolGrad";
  static constexpr Port kInputs[] = {{"dy"}, {"argmax", kElementType<uint8_t>}};
  static constexpr Port kOutputs[] = {{"dx"}};

  explicit MaxPoolGrad(const Attributes& attributes)
      : window_(attributes),
        height_(static_cast<size_t>(attributes.Int("in_h", 1, INT32_MAX))),
        width_(static_cast<size_t>(attributes.Int("in_w", 1, INT32_MAX))),
        pad_in_(ReadHalo(attributes, "pad_in")) {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto argmax = context.Input<uint8_t>(1);
    const Lanes taps = LanesOf(argmax, /*halo=*/0);
    const Lanes from = LanesLike(dy, taps);
    const Lanes to{from.groups, from.channels, height_, width_, pad_in_};
    const Lanes pooled = window_.Pooled(to, /*halo=*/0);
    if (ShapeOf(pooled) != argmax.shape) {
      throw OpError("argmax has shape " + ToString(argmax.shape) + ", must be " + ToString(ShapeOf(pooled)));
    }
    const auto dx = context.Output<float>(0, ShapeOf(to));

    ParallelChannels(context, to, [&, dy = dy.data, taps = argmax.data, dx = dx.data](size_t channel) noexcept {
      for (size_t group = 0; group < to.groups; ++group) {
        std::memset(dx + to.Plane(group, channel), 0, to.PlaneSize() * sizeof(float));
        const size_t plane = group * to.channels + channel;
        Plane(from, dy + from.Interior(group, channel), taps + plane * from.Positions() * kLanes, to, dx,
              to.Interior(group, channel));
      }
    });
  }

 private:
  void Plane(const Lanes& from, const float* dy, const uint8_t* taps, const Lanes& to, float* dx,
             size_t interior) const {
    for (size_t row = 0; row < from.height; ++row) {
      for (size_t column = 0; column < from.width; ++column, taps += kLanes) {
        const float* gradient = dy + row * from.RowStride() + column * kLanes;
        window_.ForEachTap(to, interior, row, column, [&](int32_t tap, size_t at) {
          for (size_t lane = 0; lane < kLanes; ++lane) dx[at + lane] += taps[lane] == tap ? gradient[lane] : 0.0f;
        });
      }
    }
  }

  Window window_;
  size_t height_;
  size_t width_;
  size_t pad_in_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(MeanPool)
SPARSYEDGE_DEFINE_OP(MeanPoolGrad)
SPARSYEDGE_DEFINE_OP(MaxPool)
SPARSYEDGE_DEFINE_OP(MaxPoolGrad)

}  // namespace sparsyedge
