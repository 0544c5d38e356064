// A convolution with sparse weights and its two gradients, on lanes tensors: checks shapes and splits the work into
// tasks. SparsePlan makes the lists; kernels/ has the loops.
#include "../kernels/dispatch.h"
#include "../kernels/saved.h"
#include "lanes.h"
#include "plan.h"
#include "scratch.h"

namespace sparsyedge {
namespace {

using kernels::Pass;
using kernels::PassPart;

constexpr Port kPlanPort = {"plan", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};

// ---------------------------------------------------------------------------------------------------------------------
// Tensors of a layer

Lanes InputOf(const PlanHeader& plan, size_t groups) {
  return {groups, static_cast<size_t>(plan.ic), static_cast<size_t>(plan.in_h), static_cast<size_t>(plan.in_w),
          static_cast<size_t>(plan.pad_in)};
}

Lanes OutputOf(const PlanHeader& plan, size_t groups) {
  return {groups, static_cast<size_t>(plan.oc), static_cast<size_t>(plan.out_h), static_cast<size_t>(plan.out_w),
          static_cast<size_t>(plan.pad_out)};
}

// The number of groups of a tensor that may have any.
size_t GroupsOf(const Tensor<const float>& tensor) {
  return tensor.shape.empty() ? 1 : static_cast<size_t>(std::max<int64_t>(1, tensor.shape[0]));
}

// Throws unless the tensor has the plan's shape.
void RequireShape(const Tensor<const float>& tensor, const Lanes& expected) {
  if (tensor.shape != ShapeOf(expected)) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", the plan is for " +
                  ToString(ShapeOf(expected)));
  }
}

void RequireValues(const Tensor<const float>& theta, const PlanHeader& plan) {
  if (theta.shape != Shape{plan.nnz}) {
    throw OpError(std::string(theta.name) + " has shape " + ToString(theta.shape) + ", the plan is for [" +
                  std::to_string(plan.nnz) + "]");
  }
}

const float* GroupOf(const Lanes& lanes, const float* data, size_t group) {
  return data + group * lanes.channels * lanes.PlaneSize();
}

thread_local Scratch value_scratch;       // values of a pass, or gradients of chunks
thread_local Scratch activation_scratch;  // a saved activation, unpacked

void ClearHalos(const Context& context, const Lanes& lanes, float* data) {
  if (lanes.halo == 0) return;
  ParallelParts(context, lanes.Planes(), lanes.PlaneSize(),
                [&lanes, data](size_t plane) noexcept { ClearHalo(lanes, data + plane * lanes.PlaneSize()); });
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward and gradient of the input

// The tasks of a pass: (groups, parts of the rows, chunks of cells). No two write the same element. If rows have many
// parts, a task takes all cells of its part.
struct PassTasks {
  static constexpr int kMaxChunks = 16;

  PassTasks(const kernels::PassShape& shape, size_t groups)
      : cells(kernels::CellCount(shape)),
        cells_per_chunk(shape.row_parts >= kMaxChunks ? cells : (cells + kMaxChunks - 1) / kMaxChunks),
        chunks(static_cast<size_t>((cells + cells_per_chunk - 1) / cells_per_chunk)),
        row_parts(static_cast<size_t>(shape.row_parts)),
        count(groups * row_parts * chunks) {}

  int cells, cells_per_chunk;
  size_t chunks, row_parts, count;
};

// Sums start from `init`, or from zero if it is null.
void RunPass(const Context& context, const Pass& pass, const Lanes& src_lanes, const float* src, const float* values,
             const float* init, float* dst) {
  const PassTasks tasks(pass.shape, src_lanes.groups);
  const kernels::ConvKernels& k = kernels::Kernels().conv;
  const size_t dst_group = static_cast<size_t>(pass.shape.rows) * pass.shape.dst_plane * kLanes;
  context.ParallelTasks(tasks.count, [&](size_t task) noexcept {
    const int begin = static_cast<int>(task % tasks.chunks) * tasks.cells_per_chunk;
    const PassPart part{static_cast<int>(task / tasks.chunks % tasks.row_parts), begin,
                        std::min(tasks.cells, begin + tasks.cells_per_chunk)};
    const size_t group = task / tasks.chunks / tasks.row_parts;
    k.convolve(pass, part, GroupOf(src_lanes, src, group), values, init == nullptr ? nullptr : init + group * dst_group,
               dst + group * dst_group);
  });
}

// A plan's forward pass for an output with this halo. The plan's own halo is dy's.
Pass ForwardPass(const Tensor<const int32_t>& plan, const Lanes& out) {
  Pass pass = ReadPasses(plan).front();
  pass.shape.dst_row = pass.shape.dst_col = static_cast<int32_t>(out.halo);
  pass.shape.dst_pitch = static_cast<int32_t>(out.width + 2 * out.halo);
  pass.shape.dst_plane = static_cast<int32_t>(out.PlaneSize() / kLanes);
  return pass;
}

struct SparseConv {
  static constexpr const char* kName = "SparseConv";
  static constexpr Port kInputs[] = {{"x"}, {"theta"}, kPlanPort};
  static constexpr Port kOutputs[] = {{"y"}};

  explicit SparseConv(const Attributes& attributes)
      : pad_out(attributes.Int("pad_out", kAsPlanned, kMaxHalo, /*fallback=*/kAsPlanned)) {}

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto theta = context.Input<float>(1);
    const auto plan_tensor = context.Input<int32_t>(2);
    const PlanHeader& plan = ReadPlan(plan_tensor);
    const Lanes in = InputOf(plan, GroupsOf(x));
    RequireShape(x, in);
    RequireValues(theta, plan);
    Lanes out = OutputOf(plan, in.groups);
    if (pad_out != kAsPlanned) out.halo = static_cast<size_t>(pad_out);
    const auto y = context.Output<float>(0, ShapeOf(out));

    RunPass(context, ForwardPass(plan_tensor, out), in, x.data, theta.data, /*init=*/nullptr, y.data);
    ClearHalos(context, out, y.data);
  }

  static constexpr int64_t kAsPlanned = -1;
  int64_t pad_out;  // halo of y
};

struct SparseConvGradInput {
  static constexpr const char* kName = "SparseConvGradInput";
  static constexpr Port kInputs[] = {
      {"dy"}, {"theta"}, kPlanPort, {"accumulate", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, /*optional=*/true}};
  static constexpr Port kOutputs[] = {{"dx"}};
  // Each tile is read before it is written, by one task.
  static constexpr InPlace kInPlace[] = {{/*input=*/3, /*output=*/0}};

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto theta = context.Input<float>(1);
    const auto plan_tensor = context.Input<int32_t>(2);
    const PlanHeader& plan = ReadPlan(plan_tensor);
    const auto passes = ReadPasses(plan_tensor);
    if (passes.size() < 2) throw OpError("the plan was made with grad_input = 0");
    const Lanes out = OutputOf(plan, GroupsOf(dy));
    RequireShape(dy, out);
    RequireValues(theta, plan);
    const Lanes in = InputOf(plan, out.groups);

    const float* init = nullptr;
    if (context.HasInput(3)) {
      const auto accumulate = context.Input<float>(3);
      RequireShape(accumulate, in);
      init = accumulate.data;
    }
    const auto dx = context.Output<float>(0, ShapeOf(in));
    const bool in_place = dx.data == init;
    const bool cleared = init == nullptr && AnyEmpty(passes);
    if (cleared) Clear(context, in, dx.data);
    float* values = value_scratch.Reserve(theta.size);  // a pass has no more
    for (size_t i = 1; i < passes.size(); ++i) {
      if (passes[i].shape.live == 0 && (in_place || cleared)) continue;
      Gather(context, passes[i], theta.data, values);
      RunPass(context, passes[i], out, dy.data, values, init, dx.data);
    }
    if (!in_place && !cleared) ClearHalos(context, in, dx.data);
  }

 private:
  // Whether a pass adds nothing, like three of the four of a 1x1 kernel with stride 2.
  static bool AnyEmpty(const std::vector<Pass>& passes) {
    return std::any_of(passes.begin() + 1, passes.end(), [](const Pass& pass) { return pass.shape.live == 0; });
  }

  static void Clear(const Context& context, const Lanes& lanes, float* data) {
    ParallelParts(context, lanes.Planes(), lanes.PlaneSize(), [&lanes, data](size_t plane) noexcept {
      std::memset(data + plane * lanes.PlaneSize(), 0, lanes.PlaneSize() * sizeof(float));
    });
  }

  // Gradient passes list values by input channel.
  static void Gather(const Context& context, const Pass& pass, const float* theta, float* values) {
    constexpr size_t kTasks = 16;
    const auto visits = static_cast<size_t>(pass.shape.visit_total);
    const size_t per_task = (visits + kTasks - 1) / kTasks;
    context.ParallelTasks(kTasks, [&](size_t task) noexcept {
      for (size_t v = task * per_task; v < std::min(visits, (task + 1) * per_task); ++v) {
        const kernels::GatherStart& start = pass.gather[v];
        const float* from = theta + start.base;
        const int32_t* places = pass.places + start.place_begin;
        float* to = values + start.value_begin;
        for (int32_t i = 0, count = kernels::ValueCount(pass.visits[v]); i < count; ++i) to[i] = from[places[i]];
      }
    });
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Gradient of the weights

// The input as SaveActivation left it; the bytes belong to the runtime.
class Saved {
 public:
  Saved(const Tensor<const uint8_t>& bytes, const PlanHeader& plan)
      : header_(*reinterpret_cast<const kernels::SavedHeader*>(bytes.data)), bytes_(bytes.data) {
    if (bytes.size < sizeof(header_) || header_.magic != kernels::kSavedMagic || header_.encoding > kernels::kMasked) {
      throw OpError(std::string(bytes.name) + " of shape " + ToString(bytes.shape) +
                    " is not the output of SaveActivation");
    }
    const Shape found{header_.channels, header_.height, header_.width, header_.halo};
    const Shape expected{plan.ic, plan.in_h, plan.in_w, plan.pad_in};
    if (found != expected || header_.groups < 1) {
      throw OpError(std::string(bytes.name) + " holds channels, height, width, halo " + ToString(found) +
                    ", the plan is for " + ToString(expected));
    }
    layout_ = kernels::LayoutOf(header_);
    if (bytes.size < layout_.end) {
      throw OpError(std::string(bytes.name) + " has " + std::to_string(bytes.size) + " bytes, must have " +
                    std::to_string(layout_.end) + " as its header says");
    }
  }

  size_t groups() const { return static_cast<size_t>(header_.groups); }
  bool masked() const { return header_.encoding == kernels::kMasked; }
  const float* values() const { return reinterpret_cast<const float*>(bytes_ + layout_.values); }

  kernels::MaskedPlanes Group(size_t group) const {
    const size_t rows = group * header_.channels * header_.height;
    return {reinterpret_cast<const uint32_t*>(bytes_ + layout_.row_start) + rows,
            reinterpret_cast<const uint16_t*>(bytes_ + layout_.mask) + rows * header_.width,
            values(),
            header_.height,
            header_.width,
            header_.halo};
  }

 private:
  const kernels::SavedHeader& header_;
  const uint8_t* bytes_;
  kernels::SavedLayout layout_{};
};

// Splits the cells of all groups into a few chunks with a gradient each, added in order: any number of threads then
// takes the same sums. One chunk is enough if rows are split already.
struct Chunks {
  static constexpr size_t kMaxCount = 4;

  Chunks(const kernels::PassShape& shape, size_t groups)
      : cells(static_cast<size_t>(kernels::CellCount(shape))),
        total(groups * cells),
        row_parts(static_cast<size_t>(shape.row_parts)),
        count(row_parts > 1 ? 1 : std::min(kMaxCount, total)),
        size((total + count - 1) / count) {}

  // Calls body(group, first cell, end of cells) for each group's part of a chunk.
  template <typename Body>
  void ForEachGroup(size_t chunk, const Body& body) const {
    const size_t end = std::min(total, (chunk + 1) * size);
    for (size_t begin = chunk * size; begin < end;) {
      const size_t group = begin / cells;
      const size_t stop = std::min(end, (group + 1) * cells);
      body(group, static_cast<int>(begin - group * cells), static_cast<int>(stop - group * cells));
      begin = stop;
    }
  }

  size_t cells, total, row_parts, count, size;
};

struct SparseConvGradWeight {
  static constexpr const char* kName = "SparseConvGradWeight";
  static constexpr Port kInputs[] = {{"saved", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8}, {"dy"}, kPlanPort};
  static constexpr Port kOutputs[] = {{"dtheta"}};

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const auto saved_bytes = context.Input<uint8_t>(0);
    const auto dy = context.Input<float>(1);
    const auto plan_tensor = context.Input<int32_t>(2);
    const PlanHeader& plan = ReadPlan(plan_tensor);
    const Lanes out = OutputOf(plan, GroupsOf(dy));
    RequireShape(dy, out);
    const Saved saved(saved_bytes, plan);
    if (saved.groups() != out.groups) {
      throw OpError("saved holds " + std::to_string(saved.groups()) + " groups of 16 images, dy has " +
                    std::to_string(out.groups));
    }
    const auto dtheta = context.Output<float>(0, {plan.nnz});
    const Pass pass = ReadPasses(plan_tensor).front();
    std::fill_n(dtheta.data, plan.nnz, 0.0f);
    if (pass.shape.live == 0) return;
    const Lanes in = InputOf(plan, out.groups);
    Accumulate(context, pass, in, Unpack(context, saved, in), out, dy.data, dtheta.data);
  }

 private:
  // The saved input as a tensor.
  static const float* Unpack(const Context& context, const Saved& saved, const Lanes& in) {
    if (!saved.masked()) return saved.values();
    float* x = activation_scratch.Reserve(in.Size());
    ParallelParts(context, in.Planes(), in.PlaneSize(), [&saved, &in, x](size_t plane) noexcept {
      kernels::Kernels().conv.unpack_plane(saved.Group(plane / in.channels), static_cast<int>(plane % in.channels),
                                           x + plane * in.PlaneSize());
    });
    return x;
  }

  static void Accumulate(const Context& context, const Pass& pass, const Lanes& in, const float* x, const Lanes& out,
                         const float* dy, float* dtheta) {
    const auto live = static_cast<size_t>(pass.shape.live);
    const Chunks chunks(pass.shape, out.groups);
    float* others = value_scratch.Reserve((chunks.count - 1) * live);
    std::fill_n(others, (chunks.count - 1) * live, 0.0f);

    context.ParallelTasks(chunks.count * chunks.row_parts, [&](size_t task) noexcept {
      const size_t chunk = task / chunks.row_parts;
      const auto row_part = static_cast<int>(task % chunks.row_parts);
      float* gradient = chunk == 0 ? dtheta : others + (chunk - 1) * live;
      chunks.ForEachGroup(chunk, [&](size_t group, int cell_begin, int cell_end) {
        kernels::Kernels().conv.grad_weight(pass, {row_part, cell_begin, cell_end}, GroupOf(in, x, group),
                                            GroupOf(out, dy, group), gradient);
      });
    });
    context.ParallelFor(Blocks(live), [&](Block block) noexcept {
      for (size_t chunk = 1; chunk < chunks.count; ++chunk) {
        const float* other = others + (chunk - 1) * live;
        for (size_t i = block.begin; i < block.end; ++i) dtheta[i] += other[i];
      }
    });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SparseConv)
SPARSYEDGE_DEFINE_OP(SparseConvGradInput)
SPARSYEDGE_DEFINE_OP(SparseConvGradWeight)

}  // namespace sparsyedge
