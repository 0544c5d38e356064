// Depthwise convolution of plain tensors [N, C, H, W] and its two gradients: one kernel [kh, kw] per channel.
//
// A task takes 16 channels of some images. It turns their planes into one of 16 lanes (kernels/depthwise.h), where
// borders, strides and dilations are a matter of which positions a tap pairs. That is worked out once per run, as
// grids of outputs with the same taps.
#include <atomic>
#include <memory>

#include "../kernels/dispatch.h"
#include "lanes.h"

namespace sparsyedge {
namespace {

constexpr int64_t kMaxKernel = 64;

// One axis of a convolution.
struct Axis {
  size_t in, out, kernel, stride, pad, dilation;
};

// Outputs along an axis that have the same taps: output first + j * step reads element source + j * source_step +
// m * tap_source_step for its m-th tap, which is tap + m * tap_step of the kernel.
struct Run {
  size_t first, step, count;
  size_t source, source_step;
  size_t tap, tap_step, taps;
  ptrdiff_t tap_source_step;

  // Whether an output of the same kind, `after` outputs later, continues this run.
  bool Continues(const Run& next, size_t after) const {
    return next.first == first + after * count && next.tap == tap && next.taps == taps &&
           (taps == 0 || next.source == source + source_step * count);
  }
};

// Joins outputs `step` apart, which are given in order.
void Append(std::vector<Run>& runs, const Run& next, size_t step) {
  for (Run& run : runs) {
    if (run.Continues(next, step)) {
      ++run.count;
      return;
    }
  }
  runs.push_back(next);
}

// The forward pass: output o reads input o * stride - pad + k * dilation.
std::vector<Run> ForwardRuns(const Axis& axis) {
  std::vector<Run> runs;
  for (size_t o = 0; o < axis.out; ++o) {
    const size_t start = o * axis.stride;  // in the padded input
    const size_t before = start < axis.pad ? (axis.pad - start + axis.dilation - 1) / axis.dilation : 0;
    const size_t end = axis.in + axis.pad;
    const size_t inside = start < end ? std::min(axis.kernel, (end - start - 1) / axis.dilation + 1) : 0;
    const size_t taps = inside > before ? inside - before : 0;
    const size_t source = taps == 0 ? 0 : start + before * axis.dilation - axis.pad;
    Append(runs, {o, 1, 1, source, axis.stride, before, 1, taps, static_cast<ptrdiff_t>(axis.dilation)}, 1);
  }
  return runs;
}

// The gradient of the input: input i reads output (i + pad - k * dilation) / stride for the k that divide.
std::vector<Run> BackwardRuns(const Axis& axis) {
  std::vector<Run> runs;
  for (size_t i = 0; i < axis.in; ++i) {
    Run run{i, axis.stride, 1, 0, 1, 0, 0, 0, 0};
    for (size_t k = 0; k < axis.kernel && k * axis.dilation <= i + axis.pad; ++k) {
      const size_t distance = i + axis.pad - k * axis.dilation;
      if (distance % axis.stride != 0 || distance / axis.stride >= axis.out) continue;
      const size_t source = distance / axis.stride;
      if (run.taps == 0) {
        run.tap = k;
        run.source = source;
      } else if (run.taps == 1) {
        run.tap_step = k - run.tap;
        run.tap_source_step = static_cast<ptrdiff_t>(source) - static_cast<ptrdiff_t>(run.source);
      }
      ++run.taps;
    }
    Append(runs, run, axis.stride);
  }
  return runs;
}

// All outputs of a plane, as grids of rows and columns.
class Plan {
 public:
  Plan(const std::vector<Run>& rows, const std::vector<Run>& columns, size_t source_width, size_t out_width,
       size_t kernel_width) {
    std::vector<size_t> first_taps;
    for (const Run& row : rows) {
      for (const Run& column : columns) {
        first_taps.push_back(taps_.size());
        for (size_t a = 0; a < row.taps; ++a) {
          for (size_t b = 0; b < column.taps; ++b) {
            const ptrdiff_t source =
                static_cast<ptrdiff_t>(a) * row.tap_source_step * static_cast<ptrdiff_t>(source_width) +
                static_cast<ptrdiff_t>(b) * column.tap_source_step;
            const size_t weight = (row.tap + a * row.tap_step) * kernel_width + column.tap + b * column.tap_step;
            taps_.push_back({source * static_cast<ptrdiff_t>(kLanes), weight * kLanes});
          }
        }
        grids_.push_back({row.count, row.step * out_width * kLanes, row.source_step * source_width * kLanes,
                          column.count, column.step * kLanes, column.source_step * kLanes,
                          (row.first * out_width + column.first) * kLanes,
                          (row.source * source_width + column.source) * kLanes, nullptr, row.taps * column.taps});
      }
    }
    for (size_t i = 0; i < grids_.size(); ++i) grids_[i].taps = taps_.data() + first_taps[i];
  }

  const std::vector<kernels::DepthwiseGrid>& grids() const { return grids_; }

 private:
  std::vector<kernels::DepthwiseTap> taps_;
  std::vector<kernels::DepthwiseGrid> grids_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Shapes

struct Geometry {
  Axis rows, columns;

  size_t Inputs() const { return rows.in * columns.in; }
  size_t Outputs() const { return rows.out * columns.out; }
  size_t Taps() const { return rows.kernel * columns.kernel; }

  Plan Forward() const { return {ForwardRuns(rows), ForwardRuns(columns), columns.in, columns.out, columns.kernel}; }
  Plan Backward() const { return {BackwardRuns(rows), BackwardRuns(columns), columns.out, columns.in, columns.kernel}; }
};

// What the attributes say; the rest of an axis follows from the tensors' shapes.
struct Window {
  explicit Window(const Attributes& attributes)
      : rows{0, 0, 0, Read(attributes, "stride_h", 1), Read(attributes, "pad_h", 0), Read(attributes, "dilation_h", 1)},
        columns{
            0, 0, 0, Read(attributes, "stride_w", 1), Read(attributes, "pad_w", 0), Read(attributes, "dilation_w", 1)} {
  }

  static size_t Read(const Attributes& attributes, const char* name, int64_t least) {
    return static_cast<size_t>(attributes.Int(name, least, kMaxKernel, /*fallback=*/least));
  }

  Axis rows, columns;
};

struct Size {
  int64_t height, width;
};

void RequireImages(const Tensor<const float>& tensor) {
  if (tensor.shape.size() != 4 || tensor.size == 0) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) +
                  ", must be [N,C,H,W] with no empty dimension");
  }
}

void RequireWeight(const Tensor<const float>& w, int64_t channels) {
  const Shape& shape = w.shape;
  if (shape.size() != 4 || shape[0] != channels || shape[1] != 1 || shape[2] < 1 || shape[2] > kMaxKernel ||
      shape[3] < 1 || shape[3] > kMaxKernel) {
    throw OpError("w has shape " + ToString(shape) + ", must be [" + std::to_string(channels) +
                  ",1,kh,kw] with kh and kw from 1 to " + std::to_string(kMaxKernel));
  }
}

Axis CompleteAxis(Axis axis, const char* name, int64_t in, int64_t kernel) {
  axis.in = static_cast<size_t>(in);
  axis.kernel = static_cast<size_t>(kernel);
  const size_t padded = axis.in + 2 * axis.pad;
  const size_t reach = (axis.kernel - 1) * axis.dilation + 1;
  if (padded < reach) {
    throw OpError("the kernel reaches over " + std::to_string(reach) + " " + name +
                  ", must not be more than the input has with its padding, " + std::to_string(padded));
  }
  axis.out = (padded - reach) / axis.stride + 1;
  return axis;
}

Geometry Complete(const Window& window, Size in, Size kernel) {
  return {CompleteAxis(window.rows, "rows", in.height, kernel.height),
          CompleteAxis(window.columns, "columns", in.width, kernel.width)};
}

Shape OutputShape(const Geometry& g, int64_t batch, int64_t channels) {
  return {batch, channels, static_cast<int64_t>(g.rows.out), static_cast<int64_t>(g.columns.out)};
}

void RequireOutputShape(const Tensor<const float>& dy, const Shape& wanted) {
  if (dy.shape != wanted) throw OpError("dy has shape " + ToString(dy.shape) + ", must be " + ToString(wanted));
}

// ---------------------------------------------------------------------------------------------------------------------
// Work split

// Some images of up to 16 neighbouring channels.
struct Task {
  size_t index;
  size_t first_channel, channels;
  size_t begin, end;  // images
};

// Cuts a batch into tasks by its shape alone, and lends each of them memory.
class Tasks {
 public:
  Tasks(size_t batch, size_t channels, size_t scratch)
      : batch_(batch),
        channels_(channels),
        groups_((channels + kLanes - 1) / kLanes),
        parts_(std::min(batch, std::max<size_t>(1, kTasks / groups_))),
        size_((scratch + kLanes - 1) / kLanes * kLanes),
        scratch_(new float[count() * size_ + kLanes]),
        lent_(new std::atomic<bool>[count()]()) {}

  size_t count() const { return groups_ * parts_; }
  size_t parts() const { return parts_; }

  // Calls body(task, scratch) for every task. Neighbouring tasks of a thread get the same memory, which is still in the
  // cache.
  template <typename Body>
  void Run(const Context& context, const Body& body) const {
    context.ParallelTasks(count(), [&](size_t index) noexcept {
      const size_t first = index / parts_ * kLanes, part = index % parts_;
      size_t place = 0;
      while (lent_[place].exchange(true, std::memory_order_acquire)) place = (place + 1) % count();
      body(
          Task{index, first, std::min(kLanes, channels_ - first), part * batch_ / parts_, (part + 1) * batch_ / parts_},
          Aligned() + place * size_);
      lent_[place].store(false, std::memory_order_release);
    });
  }

 private:
  static constexpr size_t kTasks = 8;

  float* Aligned() const {
    const auto address = reinterpret_cast<uintptr_t>(scratch_.get());
    return scratch_.get() + (64 - address % 64) % 64 / sizeof(float);
  }

  size_t batch_;
  size_t channels_;
  size_t groups_;
  size_t parts_;
  size_t size_;
  std::unique_ptr<float[]> scratch_;
  std::unique_ptr<std::atomic<bool>[]> lent_;
};

// The planes of a task's channels in one image. Lanes without a channel read the last one, and write to `unused`.
template <typename T>
struct Planes {
  T* of[kLanes];

  Planes(const Task& task, size_t image, size_t all_channels, size_t size, T* data, T* unused = nullptr) {
    T* first = data + (image * all_channels + task.first_channel) * size;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (lane < task.channels) {
        of[lane] = first + lane * size;
      } else {
        of[lane] = unused != nullptr ? unused : first + (task.channels - 1) * size;
      }
    }
  }
};

// The weights of a task's channels, a vector per tap.
void WeightsToLanes(const Task& task, size_t taps, const float* w, float* lanes) noexcept {
  for (size_t tap = 0; tap < taps; ++tap) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t channel = task.first_channel + std::min(lane, task.channels - 1);
      lanes[tap * kLanes + lane] = w[channel * taps + tap];
    }
  }
}

// What the forward pass and the gradient of the input share: out = weights applied to source, by the plan.
struct Application {
  const Plan& plan;
  size_t batch, channels, taps;
  const float* w;
  const float* source;
  size_t source_size;  // of a plane
  float* out;
  size_t out_size;
};

void Apply(const Context& context, const Application& a) {
  const auto& kernels = kernels::Kernels().depthwise;
  const Tasks tasks(a.batch, a.channels, (a.source_size + a.out_size + a.taps) * kLanes + a.out_size);
  tasks.Run(context, [&](const Task& task, float* source) {
    float* out = source + a.source_size * kLanes;
    float* weights = out + a.out_size * kLanes;
    float* unused = weights + a.taps * kLanes;
    WeightsToLanes(task, a.taps, a.w, weights);
    for (size_t image = task.begin; image < task.end; ++image) {
      kernels.to_lanes(a.source_size, Planes(task, image, a.channels, a.source_size, a.source).of, source);
      for (const auto& grid : a.plan.grids()) kernels.convolve(grid, source, weights, out);
      kernels.from_lanes(a.out_size, out, Planes(task, image, a.channels, a.out_size, a.out, unused).of);
    }
  });
}

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
    RequireImages(x);
    RequireWeight(w, x.shape[1]);
    const Geometry g = Complete(window_, {x.shape[2], x.shape[3]}, {w.shape[2], w.shape[3]});
    const auto y = context.Output<float>(0, OutputShape(g, x.shape[0], x.shape[1]));
    const Plan plan = g.Forward();
    Apply(context, {plan, static_cast<size_t>(x.shape[0]), static_cast<size_t>(x.shape[1]), g.Taps(), w.data, x.data,
                    g.Inputs(), y.data, g.Outputs()});
  }

 private:
  Window window_;
};

class DepthwiseConvGradInput {
 public:
  static constexpr const char* kName = "DepthwiseConvGradInput";
  static constexpr Port kInputs[] = {{"dy"}, {"w"}};
  static constexpr Port kOutputs[] = {{"dx"}};

  explicit DepthwiseConvGradInput(const Attributes& attributes)
      : window_(attributes), in_{attributes.Int("in_h", 1, INT32_MAX), attributes.Int("in_w", 1, INT32_MAX)} {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto w = context.Input<float>(1);
    RequireImages(dy);
    RequireWeight(w, dy.shape[1]);
    const Geometry g = Complete(window_, in_, {w.shape[2], w.shape[3]});
    RequireOutputShape(dy, OutputShape(g, dy.shape[0], dy.shape[1]));
    const auto dx = context.Output<float>(0, {dy.shape[0], dy.shape[1], in_.height, in_.width});
    const Plan plan = g.Backward();
    Apply(context, {plan, static_cast<size_t>(dy.shape[0]), static_cast<size_t>(dy.shape[1]), g.Taps(), w.data, dy.data,
                    g.Outputs(), dx.data, g.Inputs()});
  }

 private:
  Window window_;
  Size in_;
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
    RequireImages(x);
    const Geometry g = Complete(window_, {x.shape[2], x.shape[3]}, kernel_);
    RequireOutputShape(dy, OutputShape(g, x.shape[0], x.shape[1]));
    const auto dw = context.Output<float>(0, {x.shape[1], 1, kernel_.height, kernel_.width});
    const auto batch = static_cast<size_t>(x.shape[0]), channels = static_cast<size_t>(x.shape[1]);
    const Plan plan = g.Forward();
    const auto& kernels = kernels::Kernels().depthwise;

    const size_t width = g.Taps() * kLanes;
    const Tasks tasks(batch, channels, (g.Inputs() + g.Outputs()) * kLanes + width);
    std::vector<double> totals(tasks.count() * width);
    tasks.Run(context, [&](const Task& task, float* source) {
      float* gradient = source + g.Inputs() * kLanes;
      float* products = gradient + g.Outputs() * kLanes;
      std::fill(products, products + width, 0.0f);
      for (size_t image = task.begin; image < task.end; ++image) {
        kernels.to_lanes(g.Inputs(), Planes(task, image, channels, g.Inputs(), x.data).of, source);
        kernels.to_lanes(g.Outputs(), Planes(task, image, channels, g.Outputs(), dy.data).of, gradient);
        for (const auto& grid : plan.grids()) kernels.products(grid, gradient, source, products);
        const size_t done = image + 1 - task.begin;
        if (image + 1 == task.end || done * g.Outputs() % kFloatSums < g.Outputs()) {
          Flush(width, products, totals.data() + task.index * width);
        }
      }
    });
    for (size_t channel = 0; channel < channels; ++channel) {
      const double* group = totals.data() + channel / kLanes * tasks.parts() * width + channel % kLanes;
      for (size_t tap = 0; tap < g.Taps(); ++tap) {
        double sum = 0.0;
        for (size_t part = 0; part < tasks.parts(); ++part) sum += group[part * width + tap * kLanes];
        dw.data[channel * g.Taps() + tap] = static_cast<float>(sum);
      }
    }
  }

 private:
  static constexpr size_t kFloatSums = 1024;  // outputs whose products are added up in float

  static void Flush(size_t width, float* products, double* totals) noexcept {
    for (size_t i = 0; i < width; ++i) {
      totals[i] += products[i];
      products[i] = 0.0f;
    }
  }

  Window window_;
  Size kernel_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(DepthwiseConv)
SPARSYEDGE_DEFINE_OP(DepthwiseConvGradInput)
SPARSYEDGE_DEFINE_OP(DepthwiseConvGradWeight)

}  // namespace sparsyedge
