// Layer norm over the last axis, with what its gradient needs.
#include <optional>

#include "../kernels/dispatch.h"
#include "rows.h"

namespace sparsyedge {
namespace {

// An optional vector over the columns. What is not connected is a constant, so kernels know one case only.
class ColumnVector {
 public:
  ColumnVector(const Context& context, size_t input, const Rows& rows, float otherwise) {
    if (!context.HasInput(input)) {
      constant_.assign(rows.columns, otherwise);
      data_ = constant_.data();
      return;
    }
    const auto tensor = context.Input<float>(input);
    if (tensor.shape != Shape{static_cast<int64_t>(rows.columns)}) {
      throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", must be [" +
                    std::to_string(rows.columns) + "], one value per element of the last axis of x");
    }
    data_ = tensor.data;
  }

  const float* data() const { return data_; }

 private:
  std::vector<float> constant_;
  const float* data_;
};

class LayerNormTrain {
 public:
  static constexpr const char* kName = "LayerNormTrain";
  static constexpr Port kInputs[] = {
      {"x"}, {"gamma", kElementType<float>, /*optional=*/true}, {"beta", kElementType<float>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {{"y"}, {"mean"}, {"inv_std"}};

  explicit LayerNormTrain(const Attributes& attributes) : epsilon_(attributes.Float("epsilon", 1e-5f)) {
    if (!(epsilon_ > 0.0f)) throw OpError("attribute epsilon is " + ToString(epsilon_) + ", must be above 0");
  }

  void Compute(const Context& context) const {
    const auto x = context.Input<float>(0);
    const Rows rows = RowsOf(x);
    const ColumnVector gamma(context, 1, rows, 1.0f);
    const ColumnVector beta(context, 2, rows, 0.0f);
    Shape per_row = x.shape;
    per_row.back() = 1;
    const auto y = context.Output<float>(0, x.shape);
    const auto mean = context.Output<float>(1, per_row);
    const auto inv_std = context.Output<float>(2, per_row);

    const auto kernel = kernels::Kernels().rows.layer_norm;
    const RowTasks tasks(rows);
    context.ParallelTasks(tasks.count(), [&](size_t task) noexcept {
      const Block block = tasks.at(task);
      const size_t first = block.begin * rows.columns;
      kernel({block.end - block.begin, rows.columns, x.data + first, gamma.data(), beta.data(), epsilon_,
              y.data + first, mean.data + block.begin, inv_std.data + block.begin});
    });
  }

 private:
  float epsilon_;
};

// ---------------------------------------------------------------------------------------------------------------------

class LayerNormTrainGrad {
 public:
  static constexpr const char* kName = "LayerNormTrainGrad";
  static constexpr Port kInputs[] = {
      {"dy"}, {"x"}, {"mean"}, {"inv_std"}, {"gamma", kElementType<float>, /*optional=*/true}};
  static constexpr Port kOutputs[] = {
      {"dx"}, {"dgamma", kElementType<float>, /*optional=*/true}, {"dbeta", kElementType<float>, /*optional=*/true}};
  // A row of dx is written after the last use of that row of dy.
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  void Compute(const Context& context) const {
    const auto dy = context.Input<float>(0);
    const auto x = context.Input<float>(1);
    RequireSameShape(dy, x);
    const Rows rows = RowsOf(x);
    const float* mean = ReadPerRow(context, 2, rows);
    const float* inv_std = ReadPerRow(context, 3, rows);
    const ColumnVector gamma(context, 4, rows, 1.0f);
    const auto dx = context.Output<float>(0, x.shape);

    const RowTasks tasks(rows);
    ColumnSums sums(tasks.count(), rows.columns);
    const auto kernel = kernels::Kernels().rows.layer_norm_grad;
    context.ParallelTasks(tasks.count(), [&](size_t task) noexcept {
      const Block block = tasks.at(task);
      // Sums of a few rows are floats, those of more are doubles.
      for (size_t row = block.begin; row < block.end; row += kFloatRows) {
        const size_t first = row * rows.columns;
        kernel({std::min(kFloatRows, block.end - row), rows.columns, dy.data + first, x.data + first, mean + row,
                inv_std + row, gamma.data(), dx.data + first, sums.Part(task), sums.Part(task) + rows.columns});
        sums.Flush(task);
      }
    });
    const Shape per_column{static_cast<int64_t>(rows.columns)};
    sums.Write(context.OptionalOutput<float>(1, per_column), 0);
    sums.Write(context.OptionalOutput<float>(2, per_column), rows.columns);
  }

 private:
  static constexpr size_t kFloatRows = 32;

  // dgamma and dbeta of every task, and the floats that are being added up.
  class ColumnSums {
   public:
    ColumnSums(size_t tasks, size_t columns)
        : tasks_(tasks), columns_(columns), width_(2 * columns), totals_(tasks * width_), parts_(tasks * width_) {}

    float* Part(size_t task) { return parts_.data() + task * width_; }

    void Flush(size_t task) noexcept {
      float* part = Part(task);
      double* total = totals_.data() + task * width_;
#pragma GCC ivdep
      for (size_t i = 0; i < width_; ++i) {
        total[i] += part[i];
        part[i] = 0.0f;
      }
    }

    void Write(const std::optional<Tensor<float>>& out, size_t first) const {
      if (!out) return;
      for (size_t i = 0; i < columns_; ++i) {
        double sum = 0.0;
        for (size_t task = 0; task < tasks_; ++task) sum += totals_[task * width_ + first + i];
        out->data[i] = static_cast<float>(sum);
      }
    }

   private:
    size_t tasks_;
    size_t columns_;
    size_t width_;
    std::vector<double> totals_;
    std::vector<float> parts_;
  };

  static const float* ReadPerRow(const Context& context, size_t input, const Rows& rows) {
    const auto tensor = context.Input<float>(input);
    if (tensor.size != rows.count) {
      throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", must hold " +
                    std::to_string(rows.count) + " values, one per row of x");
    }
    return tensor.data;
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(LayerNormTrain)
SPARSYEDGE_DEFINE_OP(LayerNormTrainGrad)

}  // namespace sparsyedge
