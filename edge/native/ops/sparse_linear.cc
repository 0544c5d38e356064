// A matrix with few non-zeros times tokens, and its two gradients: checks shapes and splits the work into tasks.
// LinearPlan makes the lists; kernels/linear.inc has the loops.
#include "../kernels/dispatch.h"
#include "linear_plan.h"
#include "saved_input.h"
#include "scratch.h"
#include "tokens.h"

namespace sparsyedge {
namespace {

using kernels::SparseRows;
using kernels::TokenBlock;

thread_local Scratch block_scratch;  // blocks of tokens
thread_local Scratch value_scratch;  // values by column, or gradients of chunks
thread_local Scratch input_scratch;  // a saved input, unpacked

// Every destination token is the matrix times its source token, plus `bias` unless that is null.
void Multiply(const Context& context, const SparseRows& matrix, const float* values, const float* bias,
              const Tokens& from, const float* src, const Tokens& to, float* dst) {
  const TokenTasks tasks(from.count, from.features + to.features, Pieces::kMaxCount);
  const size_t floats = (from.features + to.features) * tasks.block_tokens();
  Pieces pieces(block_scratch.Reserve(tasks.count() * floats), floats);
  const auto multiply = kernels::Kernels().linear.multiply;
  context.ParallelTasks(tasks.count(), [&](size_t task) noexcept {
    const Pieces::Piece piece(pieces);
    float* source = piece.data();
    float* sums = source + from.features * tasks.block_tokens();
    tasks.ForEachBlock(task, [&](size_t first, const TokenBlock& block) {
      from.Load(src, first, block, source);
      multiply(block, matrix, values, bias, source, sums);
      to.Store(sums, first, block, dst);
    });
  });
}

struct SparseLinear {
  static constexpr const char* kName = "SparseLinear";
  static constexpr Port kInputs[] = {
      {"x"}, {"theta"}, kLinearPlanPort, {"bias", kElementType<float>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {{"y"}};

  explicit SparseLinear(const Attributes& attributes) : channels_last(ReadChannelsLast(attributes)) {}

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const auto theta = context.Input<float>(1);
    const LinearPlanArrays plan = ReadLinearPlan(context.Input<int32_t>(2));
    const Tokens from = TokensOf(x.name, x.shape, channels_last, plan.column_count);
    RequireValues(theta, plan);
    const float* bias = context.HasInput(3) ? ReadBias(context.Input<float>(3), plan) : nullptr;
    const auto y = context.Output<float>(0, WithFeatures(x.shape, channels_last, plan.row_count));
    Multiply(context, plan.rows, theta.data, bias, from, x.data,
             TokensOf(y.name, y.shape, channels_last, plan.row_count), y.data);
  }

  bool channels_last;

 private:
  static const float* ReadBias(const Tensor<const float>& bias, const LinearPlanArrays& plan) {
    if (bias.shape != Shape{plan.row_count}) {
      throw OpError("bias has shape " + ToString(bias.shape) + ", the plan is for [" + std::to_string(plan.row_count) +
                    "]");
    }
    return bias.data;
  }
};

struct SparseLinearGradInput {
  static constexpr const char* kName = "SparseLinearGradInput";
  static constexpr Port kInputs[] = {{"dy"}, {"theta"}, kLinearPlanPort};
  static constexpr Port kOutputs[] = {{"dx"}};

  explicit SparseLinearGradInput(const Attributes& attributes) : channels_last(ReadChannelsLast(attributes)) {}

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto theta = context.Input<float>(1);
    const LinearPlanArrays plan = ReadLinearPlan(context.Input<int32_t>(2));
    const Tokens from = TokensOf(dy.name, dy.shape, channels_last, plan.row_count);
    RequireValues(theta, plan);
    const auto dx = context.Output<float>(0, WithFeatures(dy.shape, channels_last, plan.column_count));

    float* values = value_scratch.Reserve(theta.size);
    context.ParallelFor(Blocks(theta.size), [values, theta = theta.data, place = plan.place](Block block) noexcept {
      for (size_t i = block.begin; i < block.end; ++i) values[i] = theta[place[i]];
    });
    Multiply(context, plan.columns, values, /*bias=*/nullptr, from, dy.data,
             TokensOf(dx.name, dx.shape, channels_last, plan.column_count), dx.data);
  }

  bool channels_last;
};

// ---------------------------------------------------------------------------------------------------------------------
// Gradient of the weights

struct SparseLinearGradWeight {
  static constexpr const char* kName = "SparseLinearGradWeight";
  static constexpr Port kInputs[] = {{"saved", kElementType<uint8_t>}, {"dy"}, kLinearPlanPort};
  static constexpr Port kOutputs[] = {{"dtheta"}};

  static void InferShapes(const ShapeContext&) {}

  void Compute(const Context& context) const {
    const SavedInput saved(context.Input<uint8_t>(0));
    const auto dy = context.Input<float>(1);
    const LinearPlanArrays plan = ReadLinearPlan(context.Input<int32_t>(2));
    const Tokens in = TokensOf("saved", saved.shape(), saved.channels_last(), plan.column_count);
    const Shape wanted = WithFeatures(saved.shape(), saved.channels_last(), plan.row_count);
    if (dy.shape != wanted) {
      throw OpError("dy has shape " + ToString(dy.shape) + ", must be " + ToString(wanted) + " for a saved input of " +
                    ToString(saved.shape()));
    }
    const Tokens out = TokensOf(dy.name, dy.shape, saved.channels_last(), plan.row_count);
    const auto dtheta = context.Output<float>(0, {plan.nnz});
    // A saved image unpacks as a whole, because a block takes a few pixels of each of its channels.
    const bool whole = saved.masked() && !in.channels_last;
    const float* x = whole ? Unpack(context, saved) : saved.masked() ? nullptr : saved.values();
    const auto load = [&](size_t first, const TokenBlock& block, float* strip, float* source) noexcept {
      x == nullptr ? LoadStrips(saved, in, first, block, strip, source) : in.Load(x, first, block, source);
    };
    Accumulate(context, plan, in, load, out, dy.data, dtheta);
  }

 private:
  // Parts of the tokens with a gradient each, added in order: any number of threads then takes the same sums.
  static constexpr size_t kMaxChunks = 4;
  static constexpr size_t kStrip = 16;  // tokens that are unpacked at a time; then any number of features is aligned

  static const float* Unpack(const Context& context, const SavedInput& saved) {
    float* x = input_scratch.Reserve(saved.elements());
    context.ParallelFor(Blocks(saved.elements()),
                        [&saved, x](Block block) noexcept { saved.Unpack(block.begin, block.end, x + block.begin); });
    return x;
  }

  // Unpacks the tokens of a block into `strip` and from there into the block, while they are in L1.
  static void LoadStrips(const SavedInput& saved, const Tokens& in, size_t first, const TokenBlock& block, float* strip,
                         float* source) noexcept {
    for (size_t token = 0; token < block.tokens; token += kStrip) {
      const size_t count = std::min(kStrip, block.tokens - token);
      const size_t begin = (first + token) * in.features;
      saved.Unpack(begin, begin + count * in.features, strip);
      kernels::Kernels().linear.to_block({count, block.pitch}, in.features, strip, in.features, source + token);
    }
  }

  // load(first token, block, room for a strip, where to) loads a block of the input.
  template <typename LoadBlock>
  static void Accumulate(const Context& context, const LinearPlanArrays& plan, const Tokens& in, const LoadBlock& load,
                         const Tokens& out, const float* dy, const Tensor<float>& dtheta) {
    std::fill_n(dtheta.data, dtheta.size, 0.0f);
    const TokenTasks chunks(in.count, in.features + out.features, kMaxChunks);
    const size_t others_count = chunks.count() < 2 ? 0 : chunks.count() - 1;
    float* others = value_scratch.Reserve(others_count * dtheta.size);
    std::fill_n(others, others_count * dtheta.size, 0.0f);
    const size_t floats = (in.features + out.features) * chunks.block_tokens() + in.features * kStrip;
    Pieces pieces(block_scratch.Reserve(chunks.count() * floats), floats);
    const auto grad_weight = kernels::Kernels().linear.grad_weight;

    context.ParallelTasks(chunks.count(), [&](size_t chunk) noexcept {
      const Pieces::Piece piece(pieces);
      float* source = piece.data();
      float* gradients = source + in.features * chunks.block_tokens();
      float* strip = gradients + out.features * chunks.block_tokens();
      float* sums = chunk == 0 ? dtheta.data : others + (chunk - 1) * dtheta.size;
      chunks.ForEachBlock(chunk, [&](size_t first, const TokenBlock& block) {
        load(first, block, strip, source);
        out.Load(dy, first, block, gradients);
        grad_weight(block, plan.rows, source, gradients, sums);
      });
    });
    context.ParallelFor(Blocks(dtheta.size), [&](Block block) noexcept {
      for (size_t i = 0; i < others_count; ++i) {
        const float* other = others + i * dtheta.size;
        for (size_t at = block.begin; at < block.end; ++at) dtheta.data[at] += other[at];
      }
    });
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SparseLinear)
SPARSYEDGE_DEFINE_OP(SparseLinearGradInput)
SPARSYEDGE_DEFINE_OP(SparseLinearGradWeight)

}  // namespace sparsyedge
