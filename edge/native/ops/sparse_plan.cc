// SparsePlan makes the lists that the sparse kernels walk, once per round, from the positions of the non-zeros.
#include <cstring>
#include <numeric>
#include <tuple>

#include "../kernels/dispatch.h"
#include "lanes.h"
#include "plan.h"
#include "plan_lists.h"

namespace sparsyedge {
namespace {

using kernels::GatherStart;
using kernels::PassShape;
using kernels::Visit;

// ---------------------------------------------------------------------------------------------------------------------
// Geometry

struct Geometry {
  int oc, ic, groups, kernel_h, kernel_w, stride, pad_h, pad_w, in_h, in_w, pad_in, pad_out;
  bool grad_input;

  int out_h() const { return (in_h + 2 * pad_h - kernel_h) / stride + 1; }
  int out_w() const { return (in_w + 2 * pad_w - kernel_w) / stride + 1; }
  int channels_per_row() const { return ic / groups; }
};

// One axis of a pass: position i reads source row i * step + shift[tap], counted without the halo.
struct Axis {
  int positions, step, source;  // `source`: true source rows
  std::vector<int> shift;       // per tap of the kernel
  std::vector<char> live;       // per tap: whether any position reads a true source row through it

  int First() const {
    return Live([](int a, int b) { return std::min(a, b); });
  }
  int Last() const {
    return Live([](int a, int b) { return std::max(a, b); });
  }

 private:
  template <typename Pick>
  int Live(const Pick& pick) const {
    int result = 0;
    bool any = false;
    for (size_t tap = 0; tap < shift.size(); ++tap) {
      if (live[tap]) result = any ? pick(result, shift[tap]) : shift[tap];
      any = any || live[tap];
    }
    return result;
  }
};

Axis ForwardAxis(int kernel, int stride, int pad, int in, int out) {
  Axis axis{out, stride, in, std::vector<int>(kernel), std::vector<char>(kernel)};
  for (int tap = 0; tap < kernel; ++tap) {
    axis.shift[tap] = tap - pad;
    for (int i = 0; i < out && !axis.live[tap]; ++i) {
      const int row = i * stride + axis.shift[tap];
      axis.live[tap] = row >= 0 && row < in;
    }
  }
  return axis;
}

// The rows of dx with this parity: row parity + i * stride reads dy's row i + shift through each tap that divides.
Axis BackwardAxis(int kernel, int stride, int pad, int in, int out, int parity) {
  Axis axis{(in - parity + stride - 1) / stride, 1, out, std::vector<int>(kernel), std::vector<char>(kernel)};
  for (int tap = 0; tap < kernel; ++tap) {
    const int distance = parity + pad - tap;
    if (distance % stride != 0) continue;
    axis.shift[tap] = distance / stride;
    axis.live[tap] = axis.shift[tap] < out && axis.positions - 1 + axis.shift[tap] >= 0;
  }
  return axis;
}

// Throws unless every row that the axis reads exists, halo included.
void RequireHalo(const Axis& axis, const char* name, int halo, const char* reader) {
  const int before = -axis.First();
  const int after = (axis.positions - 1) * axis.step + axis.Last() - (axis.source - 1);
  const int needed = std::max(before, after);
  if (halo < needed) {
    throw OpError(std::string(name) + " is " + std::to_string(halo) + ", must be at least " + std::to_string(needed) +
                  " for " + reader);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The rule: tile, block, parts

int PowerOfTwoUpTo(int limit) {
  int power = 1;
  while (2 * power <= limit) power *= 2;
  return power;
}

// Wide tiles, because runs share loads along a row; but with registers for 16 positions, two rows of 8, which halves
// what the halo adds to a block.
void ChooseTile(PassShape& s, int tile_positions) {
  constexpr int kMaxWidth = 8, kMaxHeight = 4, kCellHeight = 4;
  s.tile_w = std::min({tile_positions, kMaxWidth, PowerOfTwoUpTo(s.positions_w)});
  s.tile_h = std::min({tile_positions / s.tile_w, kMaxHeight, PowerOfTwoUpTo(s.positions_h)});
  s.cell_h = kCellHeight;
}

// Many groups, as in a depthwise convolution: a part has the rows of one group, which read the same few channels. A
// task then walks whole planes, one after the other.
constexpr int kManyGroups = 8;

void ChooseGroupParts(PassShape& s, int groups) {
  s.row_parts = groups;
  s.block = s.channels;
  s.blocks = 1;
}

// Splits rows as well if a plane has too few tiles to occupy a device's threads.
void ChooseRowParts(PassShape& s) {
  constexpr int kTasks = 8;
  const int cells = kernels::CellCount(s);
  s.row_parts = cells >= kTasks / 2 ? 1 : std::min(s.rows, kTasks / cells);
}

// A tile's source in one block should stay in L1 beside the tile and the lists. If that leaves too little work per
// visit, which loads and stores a whole tile, the block grows and its source comes from L2.
void ChooseBlock(PassShape& s, size_t values) {
  constexpr int kPositionBytes = kernels::kFloatsPerPosition * sizeof(float);
  constexpr int kL2Positions = 160 * 1024 / kPositionBytes;
  constexpr double kValuesPerVisit = 12.0;
  const int l1_positions = kernels::Kernels().conv.block_bytes / kPositionBytes;
  const int window_h = (s.tile_h - 1) * s.step + s.reach_h + 1;
  const int window_w = (s.tile_w - 1) * s.step + s.reach_w + 1;
  const int window = window_h * window_w;
  const double per_channel = static_cast<double>(values) / (static_cast<double>(s.rows) * s.channels);
  const double wanted = std::min(kValuesPerVisit / std::max(per_channel, 1e-9), double{kL2Positions} / window);
  const int block = std::max({l1_positions / window, static_cast<int>(wanted), 1});
  s.blocks = (s.channels + block - 1) / block;
  s.block = (s.channels + s.blocks - 1) / s.blocks;
}

// ---------------------------------------------------------------------------------------------------------------------
// Passes

// A non-zero of the dense weight tensor.
struct Weight {
  int oc, ic, ky, kx;
};

// The non-zeros, from their flat positions in [OC, IC/groups, KH, KW].
class Weights {
 public:
  Weights(const Geometry& g, const Tensor<const int32_t>& index)
      : index_(index.data),
        count_(static_cast<int32_t>(index.size)),
        taps_(g.kernel_h * g.kernel_w),
        kernel_w_(g.kernel_w),
        channels_(g.channels_per_row()),
        rows_per_group_(g.oc / g.groups) {}

  int32_t count() const { return count_; }

  Weight at(int32_t i) const {
    const int32_t flat = index_[i], kernel = flat / taps_, tap = flat % taps_;
    const int32_t row = kernel / channels_;
    return {row, row / rows_per_group_ * channels_ + kernel % channels_, tap / kernel_w_, tap % kernel_w_};
  }

 private:
  const int32_t* index_;
  int32_t count_, taps_, kernel_w_, channels_, rows_per_group_;
};

// Fills in what follows from the two axes, and builds the lists of the entries that are live on both.
template <typename MakeEntry>
Lists BuildPass(PassShape& s, const Axis& h, const Axis& w, int halo, int groups, const Weights& weights,
                const MakeEntry& make_entry) {
  s.positions_h = h.positions;
  s.positions_w = w.positions;
  s.step = h.step;
  s.reach_h = h.Last() - h.First();
  s.reach_w = w.Last() - w.First();
  s.src_row = halo + h.First();
  s.src_col = halo + w.First();
  s.src_pitch = w.source + 2 * halo;
  s.src_plane = (h.source + 2 * halo) * s.src_pitch;

  const int first_h = h.First(), first_w = w.First();
  const Entries entries{weights.count(), [&](int32_t i, Entry& entry) {
                          const Weight weight = weights.at(i);
                          if (!h.live[weight.ky] || !w.live[weight.kx]) return false;
                          entry = make_entry(weight);
                          entry.tap_h = h.shift[weight.ky] - first_h;
                          entry.tap_w = w.shift[weight.kx] - first_w;
                          entry.value = i;
                          return true;
                        }};
  ChooseTile(s, kernels::Kernels().conv.tile_positions);
  if (groups > kManyGroups) {
    ChooseGroupParts(s, groups);
  } else {
    size_t live = 0;
    for (int32_t i = 0; i < weights.count(); ++i) {
      const Weight weight = weights.at(i);
      live += h.live[weight.ky] && w.live[weight.kx];
    }
    ChooseRowParts(s);
    ChooseBlock(s, live);
  }
  return BuildLists(s, entries);
}

class PlanBuilder {
 public:
  PlanBuilder(const Geometry& geometry, const Weights& weights) : g_(geometry), weights_(weights) {}

  // Returns the order of the layer's values: the forward lists' order, then the values that no position uses.
  std::vector<int32_t> AddForward() {
    const Axis h = ForwardAxis(g_.kernel_h, g_.stride, g_.pad_h, g_.in_h, g_.out_h());
    const Axis w = ForwardAxis(g_.kernel_w, g_.stride, g_.pad_w, g_.in_w, g_.out_w());
    RequireHalo(h, "pad_in", g_.pad_in, "the rows of the convolution");
    RequireHalo(w, "pad_in", g_.pad_in, "the columns of the convolution");
    PassShape s{};
    s.rows = g_.oc;
    s.channels = g_.ic;
    s.dst_row = s.dst_col = g_.pad_out;
    s.dst_step = 1;
    s.dst_pitch = g_.out_w() + 2 * g_.pad_out;
    s.dst_plane = (g_.out_h() + 2 * g_.pad_out) * s.dst_pitch;
    Lists lists = BuildPass(s, h, w, g_.pad_in, g_.groups, weights_,
                            [](const Weight& weight) { return Entry{weight.oc, weight.ic, 0, 0, 0}; });
    Append(s, lists);

    const auto count = static_cast<size_t>(weights_.count());
    place_.assign(count, -1);
    std::vector<int32_t> order = std::move(lists.values);
    order.reserve(count);
    for (size_t i = 0; i < order.size(); ++i) place_[order[i]] = static_cast<int32_t>(i);
    for (size_t i = 0; i < count; ++i) {
      if (place_[i] >= 0) continue;
      place_[i] = static_cast<int32_t>(order.size());
      order.push_back(static_cast<int32_t>(i));
    }
    return order;
  }

  void AddGradInput() {
    for (int parity_h = 0; parity_h < std::min(g_.stride, g_.in_h); ++parity_h) {
      for (int parity_w = 0; parity_w < std::min(g_.stride, g_.in_w); ++parity_w) AddParity(parity_h, parity_w);
    }
  }

  std::vector<int32_t> Finish(const Geometry& g) {
    PlanHeader header{};
    header.magic = kPlanMagic;
    header.version = kPlanVersion;
    header.size = static_cast<int32_t>(sizeof(header) / sizeof(int32_t) + body_.size());
    header.nnz = weights_.count();
    header.weights = g.oc * g.channels_per_row() * g.kernel_h * g.kernel_w;
    std::tie(header.oc, header.ic, header.groups) = std::tie(g.oc, g.ic, g.groups);
    std::tie(header.kernel_h, header.kernel_w, header.stride) = std::tie(g.kernel_h, g.kernel_w, g.stride);
    std::tie(header.pad_h, header.pad_w, header.in_h, header.in_w) = std::tie(g.pad_h, g.pad_w, g.in_h, g.in_w);
    header.out_h = g.out_h();
    header.out_w = g.out_w();
    header.pad_in = g.pad_in;
    header.pad_out = g.pad_out;
    header.pass_count = pass_count_;
    header.tile_positions = kernels::Kernels().conv.tile_positions;
    std::vector<int32_t> plan(sizeof(header) / sizeof(int32_t));
    std::memcpy(plan.data(), &header, sizeof(header));
    plan.insert(plan.end(), body_.begin(), body_.end());
    return plan;
  }

 private:
  void AddParity(int parity_h, int parity_w) {
    const Axis h = BackwardAxis(g_.kernel_h, g_.stride, g_.pad_h, g_.in_h, g_.out_h(), parity_h);
    const Axis w = BackwardAxis(g_.kernel_w, g_.stride, g_.pad_w, g_.in_w, g_.out_w(), parity_w);
    RequireHalo(h, "pad_out", g_.pad_out, "the rows of the input's gradient");
    RequireHalo(w, "pad_out", g_.pad_out, "the columns of the input's gradient");
    PassShape s{};
    s.rows = g_.ic;
    s.channels = g_.oc;
    s.dst_row = g_.pad_in + parity_h;
    s.dst_col = g_.pad_in + parity_w;
    s.dst_step = g_.stride;
    s.dst_pitch = g_.in_w + 2 * g_.pad_in;
    s.dst_plane = (g_.in_h + 2 * g_.pad_in) * s.dst_pitch;
    Lists lists = BuildPass(s, h, w, g_.pad_out, g_.groups, weights_,
                            [](const Weight& weight) { return Entry{weight.ic, weight.oc, 0, 0, 0}; });
    std::vector<int32_t> places;
    const std::vector<GatherStart> gather = GatherOf(lists, places);
    s.place_total = static_cast<int32_t>(places.size());
    Append(s, lists);
    AppendArray(gather);
    AppendArray(places);
  }

  // Each visit's values as places in the layer's values, relative to the first.
  std::vector<GatherStart> GatherOf(const Lists& lists, std::vector<int32_t>& places) const {
    SharedLists shared(places);
    std::vector<GatherStart> gather;
    int32_t value = 0;
    for (const Visit& visit : lists.visits) {
      const int32_t count = kernels::ValueCount(visit);
      const int32_t base = count == 0 ? 0 : place_[lists.values[value]];
      std::vector<int32_t> list(count);
      for (int32_t i = 0; i < count; ++i) list[i] = place_[lists.values[value + i]] - base;
      gather.push_back({value, shared.Put(list), base});
      value += count;
    }
    return gather;
  }

  void Append(const PassShape& shape, const Lists& lists) {
    ++pass_count_;
    AppendArray(std::vector<PassShape>{shape});
    AppendArray(lists.blocks);
    AppendArray(lists.visits);
    AppendArray(lists.offsets);
    body_.resize(body_.size() + kernels::kSinglesAtOnce - 1);
  }

  template <typename T>
  void AppendArray(const std::vector<T>& array) {
    const auto* begin = reinterpret_cast<const int32_t*>(array.data());
    body_.insert(body_.end(), begin, begin + array.size() * sizeof(T) / sizeof(int32_t));
  }

  const Geometry g_;
  const Weights weights_;
  std::vector<int32_t> place_;  // of each weight in the layer's values
  std::vector<int32_t> body_;
  int32_t pass_count_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------------

constexpr int64_t kMaxChannels = 1 << 16;
constexpr int64_t kMaxSize = 1 << 20;
constexpr int64_t kMaxKernel = 31;
constexpr int64_t kMaxStride = 2;

struct SparsePlan {
  static constexpr const char* kName = "SparsePlan";
  static constexpr Port kInputs[] = {{"index", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}};
  static constexpr Port kOutputs[] = {{"plan", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
                                      {"order", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}};

  explicit SparsePlan(const Attributes& attributes) {
    const auto read = [&](const char* name, int64_t min, int64_t max) {
      return static_cast<int>(attributes.Int(name, min, max));
    };
    g.oc = read("oc", 1, kMaxChannels);
    g.ic = read("ic", 1, kMaxChannels);
    g.groups = static_cast<int>(attributes.Int("groups", 1, kMaxChannels, 1));
    g.kernel_h = read("kernel_h", 1, kMaxKernel);
    g.kernel_w = read("kernel_w", 1, kMaxKernel);
    g.stride = read("stride", 1, kMaxStride);
    const auto pad = attributes.Int("pad", 0, kMaxHalo, 0);
    g.pad_h = static_cast<int>(attributes.Int("pad_h", 0, kMaxHalo, pad));
    g.pad_w = static_cast<int>(attributes.Int("pad_w", 0, kMaxHalo, pad));
    g.in_h = read("in_h", 1, kMaxSize);
    g.in_w = read("in_w", 1, kMaxSize);
    g.pad_in = read("pad_in", 0, kMaxHalo);
    g.pad_out = read("pad_out", 0, kMaxHalo);
    g.grad_input = attributes.Int("grad_input", 0, 1, 1) != 0;
    RequireLimits();
  }

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/1, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto index = context.Input<int32_t>(0);
    RequireIndex(index);
    PlanBuilder builder(g, Weights(g, index));
    const std::vector<int32_t> order = builder.AddForward();
    if (g.grad_input) builder.AddGradInput();
    const std::vector<int32_t> plan = builder.Finish(g);
    Copy(plan, context.Output<int32_t>(0, {static_cast<int64_t>(plan.size())}));
    Copy(order, context.Output<int32_t>(1, index.shape));
  }

  Geometry g{};

 private:
  // Offsets are int32, in floats, and so is the number of weights.
  void RequireLimits() const {
    if (g.oc % g.groups != 0 || g.ic % g.groups != 0) {
      throw OpError("groups is " + std::to_string(g.groups) + ", must divide oc " + std::to_string(g.oc) + " and ic " +
                    std::to_string(g.ic));
    }
    if (g.in_h + 2 * g.pad_h < g.kernel_h || g.in_w + 2 * g.pad_w < g.kernel_w) {
      throw OpError("a kernel of " + std::to_string(g.kernel_h) + "x" + std::to_string(g.kernel_w) +
                    " does not fit into a plane of " + std::to_string(g.in_h) + "x" + std::to_string(g.in_w) +
                    " with pad " + std::to_string(g.pad_h) + "x" + std::to_string(g.pad_w));
    }
    const auto floats = [](int64_t channels, int64_t h, int64_t w, int64_t halo) {
      return channels * (h + 2 * halo) * (w + 2 * halo) * kernels::kFloatsPerPosition;
    };
    const int64_t largest =
        std::max({floats(g.ic, g.in_h, g.in_w, g.pad_in), floats(g.oc, g.out_h(), g.out_w(), g.pad_out),
                  int64_t{g.oc} * g.channels_per_row() * g.kernel_h * g.kernel_w});
    if (largest > INT32_MAX) {
      throw OpError("a layer of " + ToString(Shape{g.oc, g.channels_per_row(), g.kernel_h, g.kernel_w}) +
                    " on planes of " + std::to_string(g.in_h) + "x" + std::to_string(g.in_w) + " has a tensor of " +
                    std::to_string(largest) + " values, must be below 2^31");
    }
  }

  void RequireIndex(const Tensor<const int32_t>& index) const {
    if (index.shape.size() != 1) throw OpError("index has shape " + ToString(index.shape) + ", must be [nnz]");
    const int count = g.oc * g.channels_per_row() * g.kernel_h * g.kernel_w;
    int32_t previous = -1;
    for (size_t i = 0; i < index.size; ++i) {
      const int32_t flat = index.data[i];
      if (flat <= previous || flat >= count) {
        throw OpError("index[" + std::to_string(i) + "] is " + std::to_string(flat) + " after " +
                      std::to_string(previous) + ", must ascend and stay below " + std::to_string(count));
      }
      previous = flat;
    }
  }

  static void Copy(const std::vector<int32_t>& from, const Tensor<int32_t>& to) {
    std::copy(from.begin(), from.end(), to.data);
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SparsePlan)

}  // namespace sparsyedge
