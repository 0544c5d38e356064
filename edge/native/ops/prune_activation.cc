// Activation pruning: makes the input copy that a layer keeps for the backward pass as sparse as its weights, by
// magnitude, over the whole batch.
#include <array>
#include <numeric>

#include "../op.h"
#include "magnitude.h"

namespace sparsyedge {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// How many elements to keep

size_t CountZeros(const Context& context, const Tensor<const float>& w) {
  const Blocks blocks(w.size);
  std::array<size_t, Blocks::kMaxCount> zeros{};
  context.ParallelFor(blocks, [&zeros, w = w.data](Block block) noexcept {
    uint32_t count = 0;  // as wide as the floats, so that the loop fills its vectors
    for (size_t i = block.begin; i < block.end; ++i) count += w[i] == 0.0f;
    zeros[block.index] = count;
  });
  return std::accumulate(zeros.begin(), zeros.end(), size_t{0});
}

// ---------------------------------------------------------------------------------------------------------------------
// The k-th largest magnitude, by two histograms of 16 bits each: exact, no sort, no copy, O(n)

// Counts x's keys per block and bucket, (blocks, buckets). Integers, so the order of the blocks does not matter.
class Histogram {
 public:
  static constexpr uint32_t kBuckets = 65536;

  Histogram(const Context& context, const Tensor<const float>& x)
      : context_(context), x_(x), blocks_(x.size, kMaxBlocks), counts_(new uint32_t[blocks_.count() * kBuckets]) {}

  // Counts anew. Skips keys for which bucket_of returns kBuckets.
  template <typename BucketOf>
  void Count(BucketOf bucket_of) {
    context_.ParallelFor(blocks_, [all = counts_.get(), x = x_.data, bucket_of](Block block) noexcept {
      uint32_t* counts = all + block.index * kBuckets;
      std::fill_n(counts, kBuckets, 0);
      for (size_t i = block.begin; i < block.end; ++i) {
        const uint32_t bucket = bucket_of(MagnitudeKey(x[i]));
        if (bucket != kBuckets) ++counts[bucket];
      }
    });
  }

  // Finds the bucket of the element with this rank (the largest has rank 1) and its rank inside the bucket.
  struct Place {
    uint32_t bucket;
    size_t rank;
  };

  Place Find(size_t rank) const {
    for (uint32_t bucket = kBuckets - 1;; --bucket) {
      size_t count = 0;
      for (size_t block = 0; block < blocks_.count(); ++block) count += counts_[block * kBuckets + bucket];
      if (rank <= count || bucket == 0) return {bucket, rank};
      rank -= count;
    }
  }

 private:
  static constexpr size_t kMaxBlocks = 8;  // each costs 256 KiB of scratch memory

  const Context& context_;
  const Tensor<const float>& x_;
  Blocks blocks_;
  std::unique_ptr<uint32_t[]> counts_;
};

uint32_t KthLargestKey(const Context& context, const Tensor<const float>& x, size_t k) {
  Histogram histogram(context, x);
  histogram.Count([](uint32_t key) { return key >> 16; });
  const auto high = histogram.Find(k);
  histogram.Count(
      [wanted = high.bucket](uint32_t key) { return key >> 16 == wanted ? key & 0xffff : Histogram::kBuckets; });
  const auto low = histogram.Find(high.rank);
  return high.bucket << 16 | low.bucket;
}

// ---------------------------------------------------------------------------------------------------------------------

class PruneActivation {
 public:
  static constexpr const char* kName = "PruneActivation";
  static constexpr Port kInputs[] = {{"x"}, {"w"}};
  static constexpr Port kOutputs[] = {{"x_pruned"}};

  explicit PruneActivation(const Attributes& attributes)
      : least_(static_cast<size_t>(attributes.Int("least", 0, kWholeShare, /*fallback=*/0))) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto w = context.Input<float>(1);
    const auto pruned = context.Output<float>(0, x.shape);

    // An empty w has no zeros, so it counts as dense.
    const size_t zeros = CountZeros(context, w);
    const bool keep_all = zeros == 0 || x.size == 0;
    const uint32_t threshold =
        keep_all ? 0 : KthLargestKey(context, x, KeepCount(w.size - zeros, w.size, x.size, least_));
    ParallelFill(context, pruned,
                 [x = x.data, threshold](size_t i) { return MagnitudeKey(x[i]) >= threshold ? x[i] : 0.0f; });
  }

 private:
  size_t least_;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(PruneActivation)

}  // namespace sparsyedge
