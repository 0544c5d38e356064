// Finds the k-th largest magnitude of a tensor, and how many elements of each row are at least as large.
//
// The threshold is exact, and few elements need a close look. A sample of the tensor gives a bracket that almost surely
// holds the threshold; one pass counts what is above the bracket and collects what is inside, and the threshold is
// among those. If the bracket missed, a histogram of all elements gives a correct one. So the tensor is read twice: to
// select, and to pack. (The last step's threshold is a worse guess: on a trained net, if it is not zero, the next one
// is within an eighth of it two times in three.)
//
// A *view* says how the tensor lies in memory:
//   size_t elements()       that count: no halo, no unused lanes
//   size_t parts()          what one thread takes at a time
//   size_t rows()           in every part
//   size_t part_floats()    in memory; about the work of a part
//   size_t room()           for all candidates of a part, and 16 more
//   void Collect(part, bracket, above, between, candidates)   as kernels/select.h; noexcept
//   std::vector<uint32_t> SampleKeys()                        of elements spread evenly over the tensor
//   void ForEachElement(body)                                 body(float); zeros may be missing or too many
#pragma once

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "../op.h"
#include "lanes.h"
#include "magnitude.h"

namespace sparsyedge {

// Keys from low to high, inclusive. low >= 1: nobody looks at zeros, which are what is left once k reaches them.
struct Bracket {
  uint32_t low;
  uint32_t high;
};
inline constexpr uint32_t kTopKey = 0x7fffffff;
inline constexpr Bracket kEverything{1, kTopKey};

// All NaNs rank equal, whatever their bits, so a bracket holds all of them or none.
inline Bracket MakeBracket(uint32_t low, uint32_t high) {
  return {std::clamp(low, uint32_t{1}, kNanKey), high < kNanKey ? high : kTopKey};
}

// ---------------------------------------------------------------------------------------------------------------------
// Where the threshold may be

// Where to sample `positions`: spread evenly, but hashed inside their strides, which are often multiples of a row. A
// larger sample costs more and leaves fewer candidates; the two costs balance about here.
struct Sample {
  explicit Sample(size_t positions)
      : count(std::min(positions, std::clamp<size_t>(positions / 128, 64, 512))), stride(positions / count) {}

  size_t at(size_t i) const { return i * stride + i * size_t{2654435761} / 256 % stride; }  // Knuth's hash

  size_t count, stride;
};

// The key of this rank (the largest has rank 1). Reorders keys: smaller ones end up after it.
inline uint32_t KeyOfRank(std::vector<uint32_t>& keys, size_t rank, size_t first = 1) {
  const auto at = [&keys](size_t i) { return keys.begin() + static_cast<std::ptrdiff_t>(i - 1); };
  std::nth_element(at(first), at(rank), keys.end(), std::greater<>());
  return *at(rank);
}

// The sample's threshold, six standard deviations of its rank either way.
inline Bracket BracketFromSample(std::vector<uint32_t> keys, size_t k, size_t elements) {
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
template <typename View>
Bracket BracketFromHistogram(const View& view, size_t k) {
  constexpr uint32_t kShift = 20;
  std::vector<size_t> counts((kTopKey >> kShift) + 1);
  view.ForEachElement([&counts](float x) { ++counts[MagnitudeKey(x) >> kShift]; });
  auto bucket = static_cast<uint32_t>(counts.size() - 1);
  for (; bucket > 0 && k > counts[bucket]; --bucket) k -= counts[bucket];
  return MakeBracket(bucket << kShift, bucket << kShift | ((uint32_t{1} << kShift) - 1));
}

// ---------------------------------------------------------------------------------------------------------------------
// The threshold

// Counts for each row of the tensor against a bracket, and the magnitudes inside it.
template <typename View>
class Census {
 public:
  Census(const Context& context, const View& view)
      : context_(context),
        view_(view),
        above_(view.parts() * view.rows()),
        between_(above_.size()),
        candidates_(new float[view.parts() * view.room()]) {}

  void Take(Bracket bracket) {
    bracket_ = bracket;
    ParallelParts(context_, view_.parts(), view_.part_floats(), [this](size_t part) noexcept {
      const size_t row = part * view_.rows();
      view_.Collect(part, bracket_, &above_[row], &between_[row], candidates_.get() + part * view_.room());
    });
    above_total_ = std::accumulate(above_.begin(), above_.end(), size_t{0});
    between_total_ = std::accumulate(between_.begin(), between_.end(), size_t{0});
  }

  // An empty bracket with everything of at least `key` above it; nobody looks at zeros.
  void TakeAbove(uint32_t key) {
    const uint32_t low = std::max(key, uint32_t{1});
    Take({low, low - 1});
  }

  // The k-th largest key of all elements; also leaves the result's row counts here.
  uint32_t FindThreshold(size_t k) {
    constexpr size_t kWorthSampling = 32768;
    const size_t elements = view_.elements();
    Take(elements < kWorthSampling ? kEverything : BracketFromSample(view_.SampleKeys(), k, elements));
    if (!Holds(k)) Take(BracketFromHistogram(view_, k));
    return KeyOfRank(k);
  }

  // Where each row's elements of at least `key` begin when rows are packed one after the other, and the total, last.
  std::vector<uint32_t> RowStarts(uint32_t key) const {
    std::vector<uint32_t> starts(above_.size() + 1);
    ParallelParts(context_, view_.parts(), view_.part_floats(), [this, key, &starts](size_t part) noexcept {
      const float* candidate = candidates_.get() + part * view_.room();
      for (size_t row = part * view_.rows(); row < (part + 1) * view_.rows(); ++row) {
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

  template <typename Body>
  void ForEachCandidate(const Body& body) const {
    for (size_t part = 0; part < view_.parts(); ++part) {
      const auto rows = between_.begin() + static_cast<std::ptrdiff_t>(part * view_.rows());
      const size_t count = std::accumulate(rows, rows + static_cast<std::ptrdiff_t>(view_.rows()), size_t{0});
      const float* candidate = candidates_.get() + part * view_.room();
      for (size_t i = 0; i < count; ++i) body(candidate[i]);
    }
  }

  const Context& context_;
  const View& view_;
  Bracket bracket_ = kEverything;
  std::vector<uint32_t> above_;
  std::vector<uint32_t> between_;
  size_t above_total_ = 0;
  size_t between_total_ = 0;
  std::unique_ptr<float[]> candidates_;  // (parts, room); only touched as far as a bracket fills it
};

// ---------------------------------------------------------------------------------------------------------------------
// How much to keep

// The attributes of an op that prunes what it saves: the share of its elements to keep, and what sets the threshold.
class SaveRule {
 public:
  explicit SaveRule(const Attributes& attributes)
      : prune_(attributes.Int("prune", 0, 1, /*fallback=*/1) != 0),
        of_(attributes.Int("of", 0, INT32_MAX, /*fallback=*/0)),
        kept_(attributes.Int("kept", 0, of_, /*fallback=*/0)),
        least_(static_cast<size_t>(attributes.Int("least", 0, kWholeShare, /*fallback=*/0))) {}

  struct Threshold {
    uint32_t key;
    float tau;  // what goes out
  };

  // The threshold for a layer with nnz of `weights` values, whose row counts it leaves in the census. `values` and
  // `tau_before` are the numbers of optional inputs: the layer's values if some of them may be zero, and the threshold
  // of an earlier step, which is negative if there is none yet.
  template <typename View>
  Threshold Apply(const Context& context, Census<View>& census, size_t elements, int64_t nnz, int64_t weights,
                  size_t values, size_t tau_before) const {
    const Share share = prune_ ? ShareToKeep(context, nnz, weights, values) : Share{1, 1};
    const bool known = context.HasInput(tau_before);
    const float before = known ? ReadOne(context.Input<float>(tau_before)) : kNoTau;
    if (share.kept >= share.of) {
      census.TakeAbove(0);
      return {0, known ? before : 0.0f};
    }
    if (before >= 0.0f) {
      census.TakeAbove(MagnitudeKey(before));
      return {MagnitudeKey(before), before};
    }
    const uint32_t key = census.FindThreshold(KeepCount(share.kept, share.of, elements, least_));
    return {key, MagnitudeOf(key)};
  }

 private:
  static constexpr float kNoTau = -1.0f;

  struct Share {
    size_t kept, of;
  };

  // Keeps the share that is the layer's density, unless the node has its own share.
  Share ShareToKeep(const Context& context, int64_t nnz, int64_t weights, size_t values) const {
    if (of_ > 0) return {static_cast<size_t>(kept_), static_cast<size_t>(of_)};
    return {CountNonZero(context, nnz, values), static_cast<size_t>(weights)};
  }

  static float ReadOne(const Tensor<const float>& tau) {
    if (tau.shape != Shape{1}) throw OpError("tau_before has shape " + ToString(tau.shape) + ", must have [1]");
    return tau.data[0];
  }

  // The number of non-zero weights: the plan's, unless values may be zero.
  static size_t CountNonZero(const Context& context, int64_t nnz, size_t input) {
    if (!context.HasInput(input)) return static_cast<size_t>(nnz);
    const auto values = context.Input<float>(input);
    if (values.shape != Shape{nnz}) {
      throw OpError("values has shape " + ToString(values.shape) + ", the plan is for [" + std::to_string(nnz) + "]");
    }
    return values.size - static_cast<size_t>(std::count(values.data, values.data + values.size, 0.0f));
  }

  bool prune_;
  int64_t of_, kept_;  // a share that overrides the layer's density; none if of_ is 0
  size_t least_;       // the least share of elements to keep, in ten-thousandths
};

// Copies what is at least as large as the threshold.
inline void CopyAbove(const float* x, float* out, size_t size, uint32_t threshold) noexcept {
  for (size_t i = 0; i < size; ++i) out[i] = MagnitudeKey(x[i]) >= threshold ? x[i] : 0.0f;
}

}  // namespace sparsyedge
