// Depthwise convolution of plain tensors [N, C, H, W] and its two gradients: one kernel [kh, kw] per channel.
//
// A plane is spread over a flat array with room for the padding, so that a tap is one distance for all positions of the
// output (kernels/depthwise.h). With a stride, the padded plane falls into phases: one array for each remainder of row
// and column, in which neighbours of the output are neighbours again. All arrays have rows of the same length:
// the output's width and the reach of the kernel. What is computed for the end of a row is thrown away.
#include <cstring>

#include "../kernels/dispatch.h"
#include "../op.h"

namespace sparsyedge {
namespace {

constexpr int64_t kMaxKernel = 64;

// One axis of a convolution.
struct Axis {
  size_t in, out, kernel, stride, pad, dilation;

  size_t Reach() const { return (kernel - 1) * dilation / stride; }
  size_t PhaseLength() const { return out + Reach(); }
};

// The first element of an axis that falls into `phase`, and how many of them its array has room for.
struct PhasePart {
  size_t first;  // in the plane
  size_t place;  // in the phase
  size_t count;

  PhasePart(const Axis& axis, size_t phase) : first(0), place(0), count(0) {
    // Padding takes the first `pad` positions: start at the first position of the phase that is not before its end.
    first = (phase + axis.stride - axis.pad % axis.stride) % axis.stride;
    place = (first + axis.pad) / axis.stride;
    if (first >= axis.in || place >= axis.PhaseLength()) return;
    count = std::min((axis.in - first - 1) / axis.stride + 1, axis.PhaseLength() - place);
  }
};

size_t RoundUp(size_t value) {
  return (value + kernels::kFlatStep - 1) / kernels::kFlatStep * kernels::kFlatStep;
}

// The arrays of a convolution.
struct Geometry {
  Axis rows, columns;

  size_t Phases() const { return rows.stride * columns.stride; }
  size_t RowLength() const { return columns.PhaseLength(); }
  size_t PhaseSize() const { return rows.PhaseLength() * RowLength(); }
  size_t OutputLength() const { return (rows.out - 1) * RowLength() + columns.out; }
  size_t Taps() const { return rows.kernel * columns.kernel; }

  size_t TapPhase(size_t tap) const {
    return tap / columns.kernel * rows.dilation % rows.stride * columns.stride +
           tap % columns.kernel * columns.dilation % columns.stride;
  }
  // How far into its phase a tap starts.
  size_t TapDistance(size_t tap) const {
    return tap / columns.kernel * rows.dilation / rows.stride * RowLength() +
           tap % columns.kernel * columns.dilation / columns.stride;
  }
  size_t LargestDistance() const { return TapDistance(Taps() - 1); }
};

// ---------------------------------------------------------------------------------------------------------------------
// Between planes and flat arrays

// Takes every `stride`-th element.
void Gather(size_t count, const float* from, size_t stride, float* to) noexcept {
  if (stride == 1) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (stride == 2) {
    for (size_t i = 0; i < count; ++i) to[i] = from[2 * i];
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = from[stride * i];
  }
}

void Scatter(size_t count, const float* from, float* to, size_t stride) noexcept {
  if (stride == 1) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (stride == 2) {
    for (size_t i = 0; i < count; ++i) to[2 * i] = from[i];
  } else {
    for (size_t i = 0; i < count; ++i) to[stride * i] = from[i];
  }
}

// Calls body(row of the plane, part of the columns, place in the phases) for every row and phase.
template <typename Body>
void ForEachPart(const Geometry& g, size_t phase_stride, const Body& body) noexcept {
  for (size_t phase = 0; phase < g.Phases(); ++phase) {
    const PhasePart rows(g.rows, phase / g.columns.stride);
    const PhasePart columns(g.columns, phase % g.columns.stride);
    for (size_t i = 0; i < rows.count; ++i) {
      const size_t row = rows.first + i * g.rows.stride;
      body(row, columns, phase * phase_stride + (rows.place + i) * g.RowLength() + columns.place);
    }
  }
}

// The padding is zero already and stays so.
void SpreadInput(const Geometry& g, const float* plane, float* phases) noexcept {
  ForEachPart(g, g.PhaseSize(), [&](size_t row, const PhasePart& columns, size_t place) {
    Gather(columns.count, plane + row * g.columns.in + columns.first, g.columns.stride, phases + place);
  });
}

void SpreadOutput(const Geometry& g, const float* plane, float* flat) noexcept {
  for (size_t row = 0; row < g.rows.out; ++row) {
    std::memcpy(flat + row * g.RowLength(), plane + row * g.columns.out, g.columns.out * sizeof(float));
  }
}

void CollectOutput(const Geometry& g, const float* flat, float* plane) noexcept {
  for (size_t row = 0; row < g.rows.out; ++row) {
    std::memcpy(plane + row * g.columns.out, flat + row * g.RowLength(), g.columns.out * sizeof(float));
  }
}

// ---------------------------------------------------------------------------------------------------------------------

size_t ReadSize(const Attributes& attributes, const char* name, int64_t min, int64_t max,
                std::optional<int64_t> fallback = std::nullopt) {
  return static_cast<size_t>(attributes.Int(name, min, max, fallback));
}

// What the attributes say; `in`, `out` and `kernel` follow from the tensors' shapes.
struct Window {
  explicit Window(const Attributes& a)
      : rows{0, 0, 0, ReadSize(a, "stride_h", 1, kMaxKernel, 1), ReadSize(a, "pad_h", 0, kMaxKernel, 0),
             ReadSize(a, "dilation_h", 1, kMaxKernel, 1)},
        columns{0, 0, 0, ReadSize(a, "stride_w", 1, kMaxKernel, 1), ReadSize(a, "pad_w", 0, kMaxKernel, 0),
                ReadSize(a, "dilation_w", 1, kMaxKernel, 1)} {}

  Axis rows, columns;
};

struct Sizes {
  int64_t height, width;
};

void RequireRank4(const Tensor<const float>& tensor) {
  if (tensor.shape.size() != 4 || tensor.size == 0) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) +
                  ", must be [N,C,H,W] with no empty dimension");
  }
}

void RequireWeight(const Tensor<const float>& w, int64_t channels) {
  if (w.shape.size() != 4 || w.shape[0] != channels || w.shape[1] != 1 || w.shape[2] < 1 || w.shape[3] < 1 ||
      w.shape[2] > kMaxKernel || w.shape[3] > kMaxKernel) {
    throw OpError("w has shape " + ToString(w.shape) + ", must be [" + std::to_string(channels) +
                  ",1,kh,kw] with a kernel of at most 64x64");
  }
}

// One axis of the geometry; throws where the padded input is smaller than the kernel.
Axis CompleteAxis(Axis axis, const char* name, int64_t in, int64_t kernel) {
  axis.in = static_cast<size_t>(in);
  axis.kernel = static_cast<size_t>(kernel);
  const size_t extent = (axis.kernel - 1) * axis.dilation + 1;
  if (axis.in + 2 * axis.pad < extent) {
    throw OpError(std::string("a kernel that reaches over ") + std::to_string(extent) + " " + name +
                  " is larger than the input with padding, " + std::to_string(axis.in + 2 * axis.pad));
  }
  axis.out = (axis.in + 2 * axis.pad - extent) / axis.stride + 1;
  return axis;
}

Geometry Complete(const Window& window, Sizes in, Sizes kernel) {
  return {CompleteAxis(window.rows, "rows", in.height, kernel.height),
          CompleteAxis(window.columns, "columns", in.width, kernel.width)};
}

void RequireOutputShape(const Tensor<const float>& dy, const Geometry& g, int64_t batch, int64_t channels) {
  const Shape wanted{batch, channels, static_cast<int64_t>(g.rows.out), static_cast<int64_t>(g.columns.out)};
  if (dy.shape != wanted) {
    throw OpError("dy has shape " + ToString(dy.shape) + ", must be " + ToString(wanted));
  }
}

// Splits channels over at most kTasks tasks, each with scratch memory of its own that starts out as zeros.
class ChannelTasks {
 public:
  ChannelTasks(size_t channels, size_t floats_per_task)
      : channels_(channels), size_(RoundUp(floats_per_task)), count_(std::min(channels, kTasks)), scratch_(count_ * size_) {}

  // Calls body(channel, scratch) for every channel.
  template <typename Body>
  void Run(const Context& context, const Body& body) {
    context.ParallelTasks(count_, [&](size_t task) noexcept {
      float* scratch = scratch_.data() + task * size_;
      const size_t end = (task + 1) * channels_ / count_;
      for (size_t channel = task * channels_ / count_; channel < end; ++channel) body(channel, scratch);
    });
  }

 private:
  static constexpr size_t kTasks = 8;

  size_t channels_;
  size_t size_;
  size_t count_;
  std::vector<float> scratch_;
};

// Where every tap starts in the phases of a spread input.
std::vector<size_t> SourceOffsets(const Geometry& g) {
  std::vector<size_t> offsets(g.Taps());
  for (size_t tap = 0; tap < offsets.size(); ++tap) {
    offsets[tap] = g.TapPhase(tap) * g.PhaseSize() + g.TapDistance(tap);
  }
  return offsets;
}

// Room for all phases, and for what kernels read beyond.
size_t SourceSize(const Geometry& g) { return RoundUp(g.Phases() * g.PhaseSize() + kernels::kFlatStep); }

// ---------------------------------------------------------------------------------------------------------------------

class DepthwiseConv {
 public:
  static constexpr const char* kName = "DepthwiseConv";
  static constexpr Port kInputs[] = {{"x"}, {"w"}};
  static constexpr Port kOutputs[] = {{"y"}};

  explicit DepthwiseConv(const Attributes& attributes) : window_(attributes) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto w = context.Input<float>(1);
    RequireRank4(x);
    RequireWeight(w, x.shape[1]);
    const Geometry g = Complete(window_, {x.shape[2], x.shape[3]}, {w.shape[2], w.shape[3]});
    const auto y = context.Output<float>(
        0, {x.shape[0], x.shape[1], static_cast<int64_t>(g.rows.out), static_cast<int64_t>(g.columns.out)});
    const std::vector<size_t> offsets = SourceOffsets(g);
    const auto batch = static_cast<size_t>(x.shape[0]), channels = static_cast<size_t>(x.shape[1]);
    const auto kernel = kernels::Kernels().depthwise.correlate;

    ChannelTasks tasks(channels, SourceSize(g) + RoundUp(g.OutputLength()));
    tasks.Run(context, [&](size_t channel, float* scratch) {
      float* flat = scratch + SourceSize(g);
      const kernels::Taps taps{g.Taps(), offsets.data(), w.data + channel * g.Taps()};
      for (size_t image = 0; image < batch; ++image) {
        const size_t plane = image * channels + channel;
        SpreadInput(g, x.data + plane * g.rows.in * g.columns.in, scratch);
        kernel(g.OutputLength(), taps, scratch, flat);
        CollectOutput(g, flat, y.data + plane * g.rows.out * g.columns.out);
      }
    });
  }

 private:
  Window window_;
};

// ---------------------------------------------------------------------------------------------------------------------

class DepthwiseConvGradInput {
 public:
  static constexpr const char* kName = "DepthwiseConvGradInput";
  static constexpr Port kInputs[] = {{"dy"}, {"w"}};
  static constexpr Port kOutputs[] = {{"dx"}};

  explicit DepthwiseConvGradInput(const Attributes& attributes)
      : window_(attributes),
        in_{attributes.Int("in_h", 1, INT32_MAX), attributes.Int("in_w", 1, INT32_MAX)} {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto w = context.Input<float>(1);
    RequireRank4(dy);
    RequireWeight(w, dy.shape[1]);
    const Geometry g = Complete(window_, in_, {w.shape[2], w.shape[3]});
    RequireOutputShape(dy, g, dy.shape[0], dy.shape[1]);
    const auto dx = context.Output<float>(0, {dy.shape[0], dy.shape[1], in_.height, in_.width});
    const std::vector<PhaseTaps> phases = TapsByPhase(g);
    const auto batch = static_cast<size_t>(dy.shape[0]), channels = static_cast<size_t>(dy.shape[1]);
    const auto kernel = kernels::Kernels().depthwise.correlate;

    // dy with zeros before and after, the phases of dx, and the weights of a phase.
    const size_t flat_size = RoundUp(g.LargestDistance() + g.PhaseSize() + kernels::kFlatStep);
    const size_t phase_size = RoundUp(g.PhaseSize());
    ChannelTasks tasks(channels, flat_size + g.Phases() * phase_size + g.Taps());
    tasks.Run(context, [&](size_t channel, float* flat) {
      float* spread = flat + flat_size;
      float* weights = spread + g.Phases() * phase_size;
      size_t used = 0;
      for (const PhaseTaps& phase : phases) {
        for (const size_t tap : phase.taps) weights[used++] = w.data[channel * g.Taps() + tap];
      }
      for (size_t image = 0; image < batch; ++image) {
        const size_t plane = image * channels + channel;
        SpreadOutput(g, dy.data + plane * g.rows.out * g.columns.out, flat + g.LargestDistance());
        const float* of_phase = weights;
        for (size_t i = 0; i < phases.size(); ++i) {
          const kernels::Taps taps{phases[i].taps.size(), phases[i].offsets.data(), of_phase};
          kernel(g.PhaseSize(), taps, flat, spread + i * phase_size);
          of_phase += taps.count;
        }
        CollectInput(g, spread, phase_size, dx.data + plane * g.rows.in * g.columns.in);
      }
    });
  }

 private:
  // The taps that read a phase of the input, and where their first element is in the spread dy.
  struct PhaseTaps {
    std::vector<size_t> taps;
    std::vector<size_t> offsets;
  };

  static std::vector<PhaseTaps> TapsByPhase(const Geometry& g) {
    std::vector<PhaseTaps> phases(g.Phases());
    for (size_t tap = 0; tap < g.Taps(); ++tap) {
      PhaseTaps& phase = phases[g.TapPhase(tap)];
      phase.taps.push_back(tap);
      phase.offsets.push_back(g.LargestDistance() - g.TapDistance(tap));
    }
    return phases;
  }

  static void CollectInput(const Geometry& g, const float* spread, size_t phase_size, float* plane) noexcept {
    // With a stride, the last rows or columns of the input may be in no window.
    if (g.Phases() > 1) std::memset(plane, 0, g.rows.in * g.columns.in * sizeof(float));
    ForEachPart(g, phase_size, [&](size_t row, const PhasePart& columns, size_t place) {
      Scatter(columns.count, spread + place, plane + row * g.columns.in + columns.first, g.columns.stride);
    });
  }

  Window window_;
  Sizes in_;
};

// ---------------------------------------------------------------------------------------------------------------------

class DepthwiseConvGradWeight {
 public:
  static constexpr const char* kName = "DepthwiseConvGradWeight";
  static constexpr Port kInputs[] = {{"x"}, {"dy"}};
  static constexpr Port kOutputs[] = {{"dw"}};

  explicit DepthwiseConvGradWeight(const Attributes& attributes)
      : window_(attributes),
        kernel_{attributes.Int("kernel_h", 1, kMaxKernel), attributes.Int("kernel_w", 1, kMaxKernel)} {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto dy = context.Input<float>(1);
    RequireRank4(x);
    const Geometry g = Complete(window_, {x.shape[2], x.shape[3]}, kernel_);
    RequireOutputShape(dy, g, x.shape[0], x.shape[1]);
    const auto dw = context.Output<float>(0, {x.shape[1], 1, kernel_.height, kernel_.width});
    const std::vector<size_t> offsets = SourceOffsets(g);
    const kernels::Taps taps{g.Taps(), offsets.data(), nullptr};
    const auto batch = static_cast<size_t>(x.shape[0]), channels = static_cast<size_t>(x.shape[1]);
    const auto kernel = kernels::Kernels().depthwise.products;

    std::vector<double> sums(channels * g.Taps() * kSumLanes);
    ChannelTasks tasks(channels, SourceSize(g) + RoundUp(g.OutputLength()));
    tasks.Run(context, [&](size_t channel, float* scratch) {
      float* flat = scratch + SourceSize(g);
      double* channel_sums = sums.data() + channel * g.Taps() * kSumLanes;
      for (size_t image = 0; image < batch; ++image) {
        const size_t plane = image * channels + channel;
        SpreadInput(g, x.data + plane * g.rows.in * g.columns.in, scratch);
        SpreadOutput(g, dy.data + plane * g.rows.out * g.columns.out, flat);
        kernel(g.OutputLength(), taps, flat, scratch, channel_sums);
      }
      for (size_t tap = 0; tap < g.Taps(); ++tap) {
        double sum = 0.0;
        for (size_t lane = 0; lane < kSumLanes; ++lane) sum += channel_sums[tap * kSumLanes + lane];
        dw.data[channel * g.Taps() + tap] = static_cast<float>(sum);
      }
    });
  }

 private:
  static constexpr size_t kSumLanes = 16;

  Window window_;
  Sizes kernel_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(DepthwiseConv)
SPARSYEDGE_DEFINE_OP(DepthwiseConvGradInput)
SPARSYEDGE_DEFINE_OP(DepthwiseConvGradWeight)

}  // namespace sparsyedge
