// Activation pruning for the sparse step: makes a layer's input as sparse as its weights and packs it for the gradient
// of the weights.
//
// The threshold is the exact k-th largest magnitude, and few elements need a close look. A sample of the tensor gives a
// bracket that almost surely holds the threshold; one pass counts what is above the bracket and collects what is
// inside, and the threshold is among those. If the bracket missed, a histogram of all elements gives a correct one. So
// the tensor is read twice: to select, and to pack. (The last step's threshold is a worse guess: on a trained net, if
// it is not zero, the next one is within an eighth of it two times in three.)
#include <cmath>
#include <numeric>
#include <vector>

#include "../kernels/dispatch.h"
#include "../kernels/saved.h"
#include "lanes.h"
#include "magnitude.h"
#include "plan.h"

namespace sparsyedge {
namespace {

// Keys from low to high, inclusive. low >= 1: nobody looks at zeros, which are what is left once k reaches them.
struct Bracket {
  uint32_t low;
  uint32_t high;
};
constexpr uint32_t kTopKey = 0x7fffffff;
constexpr Bracket kEverything{1, kTopKey};

// All NaNs rank equal, whatever their bits, so a bracket holds all of them or none.
Bracket MakeBracket(uint32_t low, uint32_t high) {
  return {std::clamp(low, uint32_t{1}, kNanKey), high < kNanKey ? high : kTopKey};
}

// ---------------------------------------------------------------------------------------------------------------------
// Where the threshold may be

// Samples positions spread evenly over the tensor, but hashed inside their strides, which are often multiples of a row.
// A larger sample costs more and leaves fewer candidates; the two costs balance about here.
std::vector<uint32_t> SampleKeys(const float* x, const Lanes& lanes, size_t batch) {
  const size_t positions = lanes.Planes() * lanes.Positions();
  const size_t count = std::clamp<size_t>(positions / 128, 64, 512);
  const size_t stride = positions / count;
  std::vector<uint32_t> keys;
  keys.reserve(count * kLanes);
  for (size_t i = 0; i < count; ++i) {
    const size_t position = i * stride + i * size_t{2654435761} / 256 % stride;  // Knuth's multiplicative hash
    const size_t plane = position / lanes.Positions();
    const size_t row = position % lanes.Positions() / lanes.width;
    const size_t column = position % lanes.width;
    const size_t group = plane / lanes.channels;
    const float* at = x + lanes.Interior(group, plane % lanes.channels) + row * lanes.RowStride() + column * kLanes;
    for (size_t lane = 0; lane < lanes.UsedLanes(group, batch); ++lane) keys.push_back(MagnitudeKey(at[lane]));
  }
  return keys;
}

// The key of this rank (the largest has rank 1). Reorders keys: smaller ones end up after it.
uint32_t KeyOfRank(std::vector<uint32_t>& keys, size_t rank, size_t first = 1) {
  const auto at = [&keys](size_t i) { return keys.begin() + static_cast<std::ptrdiff_t>(i - 1); };
  std::nth_element(at(first), at(rank), keys.end(), std::greater<>());
  return *at(rank);
}

// The sample's threshold, six standard deviations of its rank either way.
Bracket BracketFromSample(std::vector<uint32_t> keys, size_t k, size_t elements) {
  const auto size = static_cast<double>(keys.size());
  const double share = static_cast<double>(k) / static_cast<double>(elements);
  const double margin = 6.0 * std::sqrt(size * share * (1.0 - share)) + 16.0;
  const auto first = static_cast<size_t>(std::max(0.0, size * share - margin));
  const auto last = static_cast<size_t>(size * share + margin);
  const uint32_t high = first < 1 ? kTopKey : KeyOfRank(keys, first);
  const uint32_t low = last > keys.size() ? 1 : KeyOfRank(keys, last, first + 1);
  return MakeBracket(low, high);
}

// The eighth of an octave that holds the k-th largest key.
Bracket BracketFromHistogram(const float* x, const Lanes& lanes, size_t k) {
  constexpr uint32_t kShift = 20;
  std::vector<size_t> counts((kTopKey >> kShift) + 1);
  for (size_t plane = 0; plane < lanes.Planes(); ++plane) {
    ForEachPosition(lanes, lanes.Interior(plane / lanes.channels, plane % lanes.channels), [&](size_t at) {
      for (size_t lane = 0; lane < kLanes; ++lane) ++counts[MagnitudeKey(x[at + lane]) >> kShift];
    });
  }
  auto bucket = static_cast<uint32_t>(counts.size() - 1);
  for (; bucket > 0 && k > counts[bucket]; --bucket) k -= counts[bucket];
  return MakeBracket(bucket << kShift, bucket << kShift | ((uint32_t{1} << kShift) - 1));
}

// ---------------------------------------------------------------------------------------------------------------------
// The threshold

// Counts for each row of the tensor, (G, C, H), against a bracket, and the magnitudes inside it.
class Census {
 public:
  Census(const Context& context, const float* x, const Lanes& lanes)
      : context_(context),
        x_(x),
        lanes_(lanes),
        above_(lanes.Planes() * lanes.height),
        between_(above_.size()),
        room_(lanes.Positions() * kLanes + kLanes),
        candidates_(new float[lanes.Planes() * room_]) {}

  void Take(Bracket bracket) {
    bracket_ = bracket;
    ParallelParts(context_, lanes_.Planes(), lanes_.PlaneSize(),
                  [this, &collect = kernels::Kernels().select.collect](size_t plane) noexcept {
                    const size_t row = plane * lanes_.height;
                    collect(lanes_.height, lanes_.width,
                            x_ + lanes_.Interior(plane / lanes_.channels, plane % lanes_.channels), lanes_.RowStride(),
                            bracket_.low, bracket_.high, &above_[row], &between_[row],
                            candidates_.get() + plane * room_);
                  });
    above_total_ = std::accumulate(above_.begin(), above_.end(), size_t{0});
    between_total_ = std::accumulate(between_.begin(), between_.end(), size_t{0});
  }

  // Whether the k-th largest key is in the bracket, or is zero.
  bool Holds(size_t k) const { return k > above_total_ && (k <= above_total_ + between_total_ || bracket_.low == 1); }

  // The k-th largest key, if the bracket holds it.
  uint32_t KeyOfRank(size_t k) const {
    size_t rank = k - above_total_;
    if (rank > between_total_) return 0;
    // A histogram over the bracket leaves a few close keys to sort.
    uint32_t shift = 0;
    while ((bracket_.high - bracket_.low) >> shift >= kBuckets) ++shift;
    const auto bucket_of = [&](float magnitude) { return (MagnitudeKey(magnitude) - bracket_.low) >> shift; };
    std::vector<uint32_t> counts(kBuckets);
    ForEachCandidate([&](float magnitude) { ++counts[bucket_of(magnitude)]; });
    uint32_t bucket = kBuckets - 1;
    for (; rank > counts[bucket]; --bucket) rank -= counts[bucket];
    std::vector<uint32_t> keys;
    keys.reserve(counts[bucket]);
    ForEachCandidate([&](float magnitude) {
      if (bucket_of(magnitude) == bucket) keys.push_back(MagnitudeKey(magnitude));
    });
    return sparsyedge::KeyOfRank(keys, rank);
  }

  // Where each row's elements of at least `key` begin when rows are packed one after the other, and the total, last.
  std::vector<uint32_t> RowStarts(uint32_t key) const {
    std::vector<uint32_t> starts(above_.size() + 1);
    ParallelParts(context_, lanes_.Planes(), lanes_.PlaneSize(), [this, key, &starts](size_t plane) noexcept {
      const float* candidate = candidates_.get() + plane * room_;
      for (size_t row = plane * lanes_.height; row < (plane + 1) * lanes_.height; ++row) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < between_[row]; ++i) kept += MagnitudeKey(candidate[i]) >= key;
        candidate += between_[row];
        starts[row + 1] = above_[row] + kept;
      }
    });
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    return starts;
  }

 private:
  static constexpr uint32_t kBuckets = 1024;

  template <typename Body>
  void ForEachCandidate(const Body& body) const {
    for (size_t plane = 0; plane < lanes_.Planes(); ++plane) {
      const auto rows = between_.begin() + static_cast<std::ptrdiff_t>(plane * lanes_.height);
      const size_t count = std::accumulate(rows, rows + static_cast<std::ptrdiff_t>(lanes_.height), size_t{0});
      const float* candidate = candidates_.get() + plane * room_;
      for (size_t i = 0; i < count; ++i) body(candidate[i]);
    }
  }

  const Context& context_;
  const float* x_;
  const Lanes& lanes_;
  Bracket bracket_ = kEverything;
  std::vector<uint32_t> above_;
  std::vector<uint32_t> between_;
  size_t above_total_ = 0;
  size_t between_total_ = 0;
  size_t room_;                          // floats per plane
  std::unique_ptr<float[]> candidates_;  // (G * C, room); only touched as far as a bracket fills it
};

// Also leaves the result's row counts in the census.
uint32_t FindThreshold(Census& census, const float* x, const Lanes& lanes, size_t batch, size_t k) {
  constexpr size_t kWorthSampling = 32768;
  const size_t elements = batch * lanes.channels * lanes.Positions();
  census.Take(elements < kWorthSampling ? kEverything : BracketFromSample(SampleKeys(x, lanes, batch), k, elements));
  if (!census.Holds(k)) census.Take(BracketFromHistogram(x, lanes, k));
  return census.KeyOfRank(k);
}

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

  explicit SaveActivation(const Attributes& attributes)
      : prune_(attributes.Int("prune", 0, 1, /*fallback=*/1) != 0),
        of_(attributes.Int("of", 0, INT32_MAX, /*fallback=*/0)),
        kept_(attributes.Int("kept", 0, of_, /*fallback=*/0)),
        least_(static_cast<size_t>(attributes.Int("least", 0, kWholeShare, /*fallback=*/0))) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const PlanHeader& plan = ReadPlan(context.Input<int32_t>(1));
    const Lanes lanes = LanesOf(x, static_cast<size_t>(plan.pad_in));
    RequirePlanned(x, lanes, plan);
    const size_t batch = ReadBatch(context, 2, lanes);

    Census census(context, x.data, lanes);
    const Share share = prune_ ? ShareToKeep(context, plan) : Share{1, 1};
    const float before = context.HasInput(4) ? ReadOne(context.Input<float>(4)) : kNoTau;
    uint32_t threshold = 0;
    float tau = context.HasInput(4) ? before : 0.0f;
    if (share.kept < share.of && before >= 0.0f) {
      threshold = MagnitudeKey(before);
      TakeAbove(census, threshold);
    } else if (share.kept < share.of) {
      const size_t elements = batch * lanes.channels * lanes.Positions();
      threshold = FindThreshold(census, x.data, lanes, batch, KeepCount(share.kept, share.of, elements, least_));
      tau = MagnitudeOf(threshold);
    } else {
      TakeAbove(census, 0);
    }
    // A threshold of zero drops nothing, but zeros still need no bytes.
    Write(context, x, lanes, std::max(threshold, uint32_t{1}), census.RowStarts(threshold));
    if (const auto output = context.OptionalOutput<float>(1, {1})) output->data[0] = tau;
  }

 private:
  struct Share {
    size_t kept, of;
  };

  // Keeps the share of x that is the layer's density, unless the node has its own share.
  Share ShareToKeep(const Context& context, const PlanHeader& plan) const {
    if (of_ > 0) return {static_cast<size_t>(kept_), static_cast<size_t>(of_)};
    return {CountNonZero(context, plan), static_cast<size_t>(plan.weights)};
  }

  static constexpr float kNoTau = -1.0f;

  // An empty bracket with everything of at least `key` above it; nobody looks at zeros.
  static void TakeAbove(Census& census, uint32_t key) {
    const uint32_t low = std::max(key, uint32_t{1});
    census.Take({low, low - 1});
  }

  // An earlier step's threshold, or a negative number if there is none yet.
  static float ReadOne(const Tensor<const float>& tau) {
    if (tau.shape != Shape{1}) throw OpError("tau_before has shape " + ToString(tau.shape) + ", must have [1]");
    return tau.data[0];
  }

  // The number of non-zero weights: the plan's, unless values may be zero.
  static size_t CountNonZero(const Context& context, const PlanHeader& plan) {
    if (!context.HasInput(3)) return static_cast<size_t>(plan.nnz);
    const auto values = context.Input<float>(3);
    if (values.shape != Shape{plan.nnz}) {
      throw OpError("values has shape " + ToString(values.shape) + ", the plan is for [" + std::to_string(plan.nnz) +
                    "]");
    }
    return values.size - static_cast<size_t>(std::count(values.data, values.data + values.size, 0.0f));
  }

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

  static void CopyAbove(const float* x, float* out, size_t size, uint32_t threshold) noexcept {
    for (size_t i = 0; i < size; ++i) out[i] = MagnitudeKey(x[i]) >= threshold ? x[i] : 0.0f;
  }

  bool prune_;
  int64_t of_, kept_;  // a share of x that overrides the layer's density; none if of_ is 0
  size_t least_;       // the least share of elements to keep, in ten-thousandths
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SaveActivation)

}  // namespace sparsyedge
