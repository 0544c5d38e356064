// Activation pruning for the sparse step: makes a layer's input as sparse as its weights and packs it for the gradient
// of the weights. selection.h finds the threshold.
#include <numeric>
#include <vector>

#include "../kernels/dispatch.h"
#include "../kernels/saved.h"
#include "lanes.h"
#include "plan.h"
#include "selection.h"

namespace sparsyedge {
namespace {

// A lanes tensor as selection.h sees it: a part is a plane.
class LanesView {
 public:
  LanesView(const float* x, const Lanes& lanes, size_t batch) : x_(x), lanes_(lanes), batch_(batch) {}

  size_t elements() const { return batch_ * lanes_.channels * lanes_.Positions(); }
  size_t parts() const { return lanes_.Planes(); }
  size_t rows() const { return lanes_.height; }
  size_t part_floats() const { return lanes_.PlaneSize(); }
  size_t room() const { return lanes_.Positions() * kLanes + kLanes; }

  void Collect(size_t plane, Bracket bracket, uint32_t* above, uint32_t* between, float* candidates) const noexcept {
    kernels::Kernels().select.collect(lanes_.height, lanes_.width, x_ + InteriorOf(plane), lanes_.RowStride(),
                                      bracket.low, bracket.high, above, between, candidates);
  }

  std::vector<uint32_t> SampleKeys() const {
    const Sample sample(lanes_.Planes() * lanes_.Positions());
    std::vector<uint32_t> keys;
    keys.reserve(sample.count * kLanes);
    for (size_t i = 0; i < sample.count; ++i) {
      const size_t position = sample.at(i);
      const size_t plane = position / lanes_.Positions();
      const size_t row = position % lanes_.Positions() / lanes_.width;
      const size_t column = position % lanes_.width;
      const float* at = x_ + InteriorOf(plane) + row * lanes_.RowStride() + column * kLanes;
      const size_t used = lanes_.UsedLanes(plane / lanes_.channels, batch_);
      for (size_t lane = 0; lane < used; ++lane) keys.push_back(MagnitudeKey(at[lane]));
    }
    return keys;
  }

  template <typename Body>
  void ForEachElement(const Body& body) const {
    for (size_t plane = 0; plane < lanes_.Planes(); ++plane) {
      ForEachPosition(lanes_, InteriorOf(plane), [&](size_t at) {
        for (size_t lane = 0; lane < kLanes; ++lane) body(x_[at + lane]);
      });
    }
  }

 private:
  size_t InteriorOf(size_t plane) const { return lanes_.Interior(plane / lanes_.channels, plane % lanes_.channels); }

  const float* x_;
  const Lanes& lanes_;
  size_t batch_;
};

// ---------------------------------------------------------------------------------------------------------------------

class SaveActivation {
 public:
  static constexpr const char* kName = "SaveActivation";
  static constexpr Port kInputs[] = {{"x"},
                                     {"plan", kElementType<int32_t>},
                                     {"batch", kElementType<int64_t>},
                                     {"values", kElementType<float>, /*optional=*/true},
                                     {"tau_before", kElementType<float>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {{"saved", kElementType<uint8_t>},
                                      {"tau", kElementType<float>, /*optional=*/true}};

  explicit SaveActivation(const Attributes& attributes) : rule_(attributes) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const PlanHeader& plan = ReadPlan(context.Input<int32_t>(1));
    const Lanes lanes = LanesOf(x, static_cast<size_t>(plan.pad_in));
    RequirePlanned(x, lanes, plan);
    const LanesView view(x.data, lanes, ReadBatch(context, 2, lanes));

    Census census(context, view);
    const auto threshold = rule_.Apply(context, census, view.elements(), plan.nnz, plan.weights, /*values=*/3,
                                       /*tau_before=*/4);
    // A threshold of zero drops nothing, but zeros still need no bytes.
    Write(context, x, lanes, std::max(threshold.key, uint32_t{1}), census.RowStarts(threshold.key));
    if (const auto output = context.OptionalOutput<float>(1, {1})) output->data[0] = threshold.tau;
  }

 private:
  static void RequirePlanned(const Tensor<const float>& x, const Lanes& lanes, const PlanHeader& plan) {
    const Shape planned{x.shape[0], plan.ic, plan.in_h + 2 * plan.pad_in, plan.in_w + 2 * plan.pad_in,
                        static_cast<int64_t>(kLanes)};
    if (x.shape != planned) {
      throw OpError("x has shape " + ToString(x.shape) + ", the plan was made for " + ToString(planned));
    }
    if (lanes.Size() > UINT32_MAX) {
      throw OpError("x has shape " + ToString(x.shape) + ", must have fewer than 2^32 elements");
    }
  }

  static void Write(const Context& context, const Tensor<const float>& x, const Lanes& lanes, uint32_t threshold,
                    const std::vector<uint32_t>& row_starts) {
    kernels::SavedHeader header{};
    header.magic = kernels::kSavedMagic;
    header.encoding = kernels::kMasked;
    header.groups = static_cast<int32_t>(lanes.groups);
    header.channels = static_cast<int32_t>(lanes.channels);
    header.height = static_cast<int32_t>(lanes.height);
    header.width = static_cast<int32_t>(lanes.width);
    header.halo = static_cast<int32_t>(lanes.halo);
    header.value_count = row_starts.back();
    const size_t masked_size = kernels::LayoutOf(header).end;
    if (masked_size > sizeof(header) + x.size * sizeof(float)) {
      header.encoding = kernels::kPlain;
      header.value_count = static_cast<uint32_t>(x.size);
    }
    const kernels::SavedLayout at = kernels::LayoutOf(header);
    uint8_t* saved = context.Output<uint8_t>(0, {static_cast<int64_t>(at.end)}).data;
    std::memcpy(saved, &header, sizeof(header));
    if (header.encoding == kernels::kMasked) {
      // Clears the last line of both arrays, which they may not fill: equal tensors must give equal bytes.
      std::memset(saved + at.mask - kernels::RoundUpToLine(1), 0, kernels::RoundUpToLine(1));
      std::memset(saved + at.values - kernels::RoundUpToLine(1), 0, kernels::RoundUpToLine(1));
      std::memcpy(saved + at.row_start, row_starts.data(), row_starts.size() * sizeof(uint32_t));
    }
    auto* mask = reinterpret_cast<uint16_t*>(saved + at.mask);
    auto* values = reinterpret_cast<float*>(saved + at.values);

    ParallelParts(context, lanes.Planes(), lanes.PlaneSize(),
                  [&, masked = header.encoding == kernels::kMasked](size_t plane) noexcept {
                    const size_t group = plane / lanes.channels;
                    const size_t channel = plane % lanes.channels;
                    if (!masked) {
                      const size_t begin = lanes.Plane(group, channel);
                      return CopyAbove(x.data + begin, values + begin, lanes.PlaneSize(), threshold);
                    }
                    const uint32_t begin = row_starts[plane * lanes.height];
                    const uint32_t end = row_starts[(plane + 1) * lanes.height];
                    kernels::Kernels().select.pack(lanes.height, lanes.width, x.data + lanes.Interior(group, channel),
                                                   lanes.RowStride(), threshold, mask + plane * lanes.Positions(),
                                                   values + begin, end - begin);
                  });
  }

  SaveRule rule_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SaveActivation)

}  // namespace sparsyedge
