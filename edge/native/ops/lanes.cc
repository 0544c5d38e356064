// Converts images to the lanes layout and logits back.
#include "lanes.h"

namespace sparsyedge {
namespace {

// Both directions walk one row of one plane for 16 images at a time.
void RowToLanes(const float* row, size_t image_stride, size_t used, size_t width, float* lanes) {
  for (size_t x = 0; x < width; ++x, lanes += kLanes) {
    for (size_t lane = 0; lane < used; ++lane) lanes[lane] = row[lane * image_stride + x];
    for (size_t lane = used; lane < kLanes; ++lane) lanes[lane] = 0.0f;
  }
}

void RowFromLanes(const float* lanes, size_t image_stride, size_t used, size_t width, float* row) {
  for (size_t x = 0; x < width; ++x, lanes += kLanes) {
    for (size_t lane = 0; lane < used; ++lane) row[lane * image_stride + x] = lanes[lane];
  }
}

// ---------------------------------------------------------------------------------------------------------------------

class ToLanes {
 public:
  static constexpr const char* kName = "ToLanes";
  static constexpr Port kInputs[] = {{"x"}};
  static constexpr Port kOutputs[] = {{"lanes"}};

  explicit ToLanes(const Attributes& attributes) : pad_out_(ReadHalo(attributes, "pad_out")) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    if (x.shape.size() != 4 || x.size == 0) {
      throw OpError("x has shape " + ToString(x.shape) + ", must be [N,C,H,W] with no empty dimension");
    }
    const auto batch = static_cast<size_t>(x.shape[0]);
    const Lanes to{(batch + kLanes - 1) / kLanes, static_cast<size_t>(x.shape[1]), static_cast<size_t>(x.shape[2]),
                   static_cast<size_t>(x.shape[3]), pad_out_};
    const size_t image_size = to.channels * to.Positions();
    const auto lanes = context.Output<float>(0, ShapeOf(to));

    ParallelChannels(context, to, [&, from = x.data, out = lanes.data](size_t channel) noexcept {
      for (size_t group = 0; group < to.groups; ++group) {
        ClearHalo(to, out + to.Plane(group, channel));
        const float* image = from + group * kLanes * image_size + channel * to.Positions();
        float* interior = out + to.Interior(group, channel);
        for (size_t y = 0; y < to.height; ++y) {
          RowToLanes(image + y * to.width, image_size, to.UsedLanes(group, batch), to.width,
                     interior + y * to.RowStride());
        }
      }
    });
  }

 private:
  size_t pad_out_;
};

class FromLanes {
 public:
  static constexpr const char* kName = "FromLanes";
  static constexpr Port kInputs[] = {{"lanes"}, {"batch", kElementType<int64_t>}};
  static constexpr Port kOutputs[] = {{"x"}};

  explicit FromLanes(const Attributes& attributes) : pad_in_(ReadHalo(attributes, "pad_in")) {}

  void Compute(const Context& context) const {
    const auto lanes = context.Input<float>(0);
    const Lanes from = LanesOf(lanes, pad_in_);
    const size_t batch = ReadBatch(context, 1, from);
    const size_t image_size = from.channels * from.Positions();
    const auto x = context.Output<float>(0, {static_cast<int64_t>(batch), static_cast<int64_t>(from.channels),
                                             static_cast<int64_t>(from.height), static_cast<int64_t>(from.width)});

    ParallelChannels(context, from, [&, in = lanes.data, out = x.data](size_t channel) noexcept {
      for (size_t group = 0; group < from.groups; ++group) {
        const float* interior = in + from.Interior(group, channel);
        float* image = out + group * kLanes * image_size + channel * from.Positions();
        for (size_t y = 0; y < from.height; ++y) {
          RowFromLanes(interior + y * from.RowStride(), image_size, from.UsedLanes(group, batch), from.width,
                       image + y * from.width);
        }
      }
    });
  }

 private:
  size_t pad_in_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(ToLanes)
SPARSYEDGE_DEFINE_OP(FromLanes)

}  // namespace sparsyedge
