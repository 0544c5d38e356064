// SaveInput makes the input of a layer as sparse as the layer's weights and packs it for the gradient of the weights;
// LoadInput unpacks it. selection.h finds the threshold.
#include "../kernels/dispatch.h"
#include "linear_plan.h"
#include "saved_input.h"
#include "selection.h"
#include "tokens.h"

namespace sparsyedge {

const SavedInputHeader& SavedInput::Check(const Tensor<const uint8_t>& bytes) {
  const auto& header = *reinterpret_cast<const SavedInputHeader*>(bytes.data);
  if (bytes.size < sizeof(header) || header.magic != kSavedInputMagic || header.encoding > kernels::kMasked ||
      header.rank > kMaxSavedRank) {
    throw OpError(std::string(bytes.name) + " of shape " + ToString(bytes.shape) + " is not the output of SaveInput");
  }
  return header;
}

SavedInput::SavedInput(const Tensor<const uint8_t>& bytes)
    : header_(Check(bytes)),
      bytes_(bytes.data),
      shape_(header_.shape, header_.shape + header_.rank),
      elements_(ElementCount(shape_)),
      layout_(header_, elements_) {
  if (bytes.size != layout_.end) {
    throw OpError(std::string(bytes.name) + " has " + std::to_string(bytes.size) + " bytes, must have " +
                  std::to_string(layout_.end) + " as its header says");
  }
}

void SavedInput::Unpack(size_t begin, size_t end, float* x) const noexcept {
  const auto unpack = kernels::Kernels().linear.unpack;
  size_t vector = begin / kSavedVector;
  const size_t part = begin / kSavedPart;
  const float* from = values() + part_start()[part];
  for (size_t i = part * (kSavedPart / kSavedVector); i < vector; ++i) from += __builtin_popcount(mask()[i]);
  const size_t whole = (end - begin) / kSavedVector;
  from += unpack(whole, mask() + vector, from, x);
  vector += whole;
  const size_t left = (end - begin) % kSavedVector;
  if (left == 0) return;
  float tail[kSavedVector];
  unpack(1, mask() + vector, from, tail);
  std::memcpy(x + whole * kSavedVector, tail, left * sizeof(float));
}

namespace {

// A tensor as selection.h sees it: a part is 4096 elements.
class FlatView {
 public:
  FlatView(const float* x, size_t size) : x_(x), size_(size) {}

  size_t elements() const { return size_; }
  size_t parts() const { return (size_ + kSavedPart - 1) / kSavedPart; }
  size_t rows() const { return 1; }
  size_t part_floats() const { return kSavedPart; }
  size_t room() const { return kSavedPart + kSavedVector; }

  void Collect(size_t part, Bracket bracket, uint32_t* above, uint32_t* between, float* candidates) const noexcept {
    const auto collect = kernels::Kernels().select.collect;
    collect(1, Whole(part), Begin(part), 0, bracket.low, bracket.high, above, between, candidates);
    if (Left(part) == 0) return;
    uint32_t above_left, between_left;
    collect(1, 1, Tail(part).x, 0, bracket.low, bracket.high, &above_left, &between_left, candidates + *between);
    *above += above_left;
    *between += between_left;
  }

  // Writes the masks of a part and its `count` values of at least `threshold`.
  void Pack(size_t part, uint32_t threshold, uint16_t* mask, float* values, size_t count) const noexcept {
    const auto pack = kernels::Kernels().select.pack;
    mask += part * (kSavedPart / kSavedVector);
    if (Left(part) == 0) return pack(1, Whole(part), Begin(part), 0, threshold, mask, values, count);
    const Padded tail = Tail(part);
    size_t in_tail = 0;
    for (const float x : tail.x) in_tail += MagnitudeKey(x) >= threshold;
    pack(1, Whole(part), Begin(part), 0, threshold, mask, values, count - in_tail);
    pack(1, 1, tail.x, 0, threshold, mask + Whole(part), values + count - in_tail, in_tail);
  }

  std::vector<uint32_t> SampleKeys() const {
    const Sample sample(size_ / kSavedVector);
    std::vector<uint32_t> keys;
    keys.reserve(sample.count * kSavedVector);
    for (size_t i = 0; i < sample.count; ++i) {
      const float* at = x_ + sample.at(i) * kSavedVector;
      for (size_t j = 0; j < kSavedVector; ++j) keys.push_back(MagnitudeKey(at[j]));
    }
    return keys;
  }

  template <typename Body>
  void ForEachElement(const Body& body) const {
    for (size_t i = 0; i < size_; ++i) body(x_[i]);
  }

 private:
  struct Padded {
    float x[kSavedVector] = {};
  };

  const float* Begin(size_t part) const { return x_ + part * kSavedPart; }
  size_t Size(size_t part) const { return std::min(kSavedPart, size_ - part * kSavedPart); }
  size_t Whole(size_t part) const { return Size(part) / kSavedVector; }
  size_t Left(size_t part) const { return Size(part) % kSavedVector; }

  Padded Tail(size_t part) const {
    Padded tail;
    std::memcpy(tail.x, Begin(part) + Whole(part) * kSavedVector, Left(part) * sizeof(float));
    return tail;
  }

  const float* x_;
  size_t size_;
};

// ---------------------------------------------------------------------------------------------------------------------

class SaveInput {
 public:
  static constexpr const char* kName = "SaveInput";
  static constexpr Port kInputs[] = {{"x"},
                                     kLinearPlanPort,
                                     {"values", kElementType<float>, /*optional=*/true},
                                     {"tau_before", kElementType<float>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {{"saved", kElementType<uint8_t>},
                                      {"tau", kElementType<float>, /*optional=*/true}};

  explicit SaveInput(const Attributes& attributes) : channels_last_(ReadChannelsLast(attributes)), rule_(attributes) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const LinearPlanArrays plan = ReadLinearPlan(context.Input<int32_t>(1));
    TokensOf(x.name, x.shape, channels_last_, plan.column_count);
    if (x.shape.size() > kMaxSavedRank || x.size > UINT32_MAX) {
      throw OpError("x has shape " + ToString(x.shape) + ", must have at most " + std::to_string(kMaxSavedRank) +
                    " dimensions and fewer than 2^32 elements");
    }
    const FlatView view(x.data, x.size);
    Census census(context, view);
    const auto threshold = rule_.Apply(context, census, view.elements(), plan.nnz, plan.weights(), /*values=*/2,
                                       /*tau_before=*/3);
    // A threshold of zero drops nothing, but zeros still need no bytes.
    Write(context, x, view, std::max(threshold.key, uint32_t{1}), census.RowStarts(threshold.key));
    if (const auto output = context.OptionalOutput<float>(1, {1})) output->data[0] = threshold.tau;
  }

 private:
  SavedInputHeader HeaderFor(const Tensor<const float>& x, size_t kept) const {
    SavedInputHeader header{};
    header.magic = kSavedInputMagic;
    header.encoding = kernels::kMasked;
    header.channels_last = channels_last_ ? 1 : 0;
    header.rank = static_cast<uint32_t>(x.shape.size());
    std::copy(x.shape.begin(), x.shape.end(), header.shape);
    header.value_count = kept;
    if (SavedInputLayout(header, x.size).end > sizeof(header) + x.size * sizeof(float)) {
      header.encoding = kernels::kPlain;
      header.value_count = x.size;
    }
    return header;
  }

  void Write(const Context& context, const Tensor<const float>& x, const FlatView& view, uint32_t threshold,
             const std::vector<uint32_t>& part_starts) const {
    const SavedInputHeader header = HeaderFor(x, part_starts.back());
    const SavedInputLayout at(header, x.size);
    uint8_t* saved = context.Output<uint8_t>(0, {static_cast<int64_t>(at.end)}).data;
    std::memcpy(saved, &header, sizeof(header));
    auto* values = reinterpret_cast<float*>(saved + at.values);
    if (header.encoding == kernels::kPlain) {
      return context.ParallelFor(Blocks(x.size), [&](Block block) noexcept {
        CopyAbove(x.data + block.begin, values + block.begin, block.end - block.begin, threshold);
      });
    }
    // Clears the last line of both arrays, which they may not fill: equal tensors must give equal bytes.
    std::memset(saved + at.mask - kernels::RoundUpToLine(1), 0, kernels::RoundUpToLine(1));
    std::memset(saved + at.values - kernels::RoundUpToLine(1), 0, kernels::RoundUpToLine(1));
    std::memcpy(saved + at.part_start, part_starts.data(), part_starts.size() * sizeof(uint32_t));
    auto* mask = reinterpret_cast<uint16_t*>(saved + at.mask);
    ParallelParts(context, view.parts(), view.part_floats(), [&](size_t part) noexcept {
      view.Pack(part, threshold, mask, values + part_starts[part], part_starts[part + 1] - part_starts[part]);
    });
  }

  bool channels_last_;
  SaveRule rule_;
};

struct LoadInput {
  static constexpr const char* kName = "LoadInput";
  static constexpr Port kInputs[] = {{"saved", kElementType<uint8_t>}};
  static constexpr Port kOutputs[] = {{"x"}};

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const SavedInput saved(context.Input<uint8_t>(0));
    const auto x = context.Output<float>(0, saved.shape());
    context.ParallelFor(Blocks(x.size), [&](Block block) noexcept {
      if (saved.masked()) return saved.Unpack(block.begin, block.end, x.data + block.begin);
      std::memcpy(x.data + block.begin, saved.values() + block.begin, (block.end - block.begin) * sizeof(float));
    });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SaveInput)
SPARSYEDGE_DEFINE_OP(LoadInput)

}  // namespace sparsyedge
