#include "linear_plan.h"

namespace sparsyedge {
namespace {

constexpr size_t kHeaderSize = sizeof(LinearPlanHeader) / sizeof(int32_t);
constexpr size_t kSlack = kernels::kNonZerosAtOnce - 1;

// Where a plan's arrays begin, in int32 from its header.
struct Layout {
  Layout(size_t rows, size_t columns, size_t nnz)
      : row_start(kHeaderSize),
        column(row_start + rows + 1),
        column_start(column + nnz + kSlack),
        row(column_start + columns + 1),
        place(row + nnz + kSlack),
        end(place + nnz) {}

  size_t row_start, column, column_start, row, place, end;
};

}  // namespace

LinearPlanArrays ReadLinearPlan(const Tensor<const int32_t>& plan) {
  const auto& header = *reinterpret_cast<const LinearPlanHeader*>(plan.data);
  if (plan.size < kHeaderSize || header.magic != kLinearPlanMagic || header.version != kLinearPlanVersion) {
    throw OpError(std::string(plan.name) + " of shape " + ToString(plan.shape) +
                  " is not the output of LinearPlan: its first values must be " + std::to_string(kLinearPlanMagic) +
                  ", " + std::to_string(kLinearPlanVersion));
  }
  const Layout at(static_cast<size_t>(header.rows), static_cast<size_t>(header.columns),
                  static_cast<size_t>(header.nnz));
  if (plan.size != at.end) {
    throw OpError(std::string(plan.name) + " has " + std::to_string(plan.size) + " values, must have " +
                  std::to_string(at.end) + " as its header says");
  }
  return {header.rows,
          header.columns,
          header.nnz,
          {plan.data + at.row_start, plan.data + at.column},
          {plan.data + at.column_start, plan.data + at.row},
          plan.data + at.place};
}

void RequireValues(const Tensor<const float>& theta, const LinearPlanArrays& plan) {
  if (theta.shape != Shape{plan.nnz}) {
    throw OpError(std::string(theta.name) + " has shape " + ToString(theta.shape) + ", the plan is for [" +
                  std::to_string(plan.nnz) + "]");
  }
}

namespace {

constexpr int64_t kMaxFeatures = 1 << 20;

struct LinearPlan {
  static constexpr const char* kName = "LinearPlan";
  static constexpr Port kInputs[] = {{"index", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}};
  static constexpr Port kOutputs[] = {{"plan", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
                                      {"order", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}};

  explicit LinearPlan(const Attributes& attributes)
      : rows(attributes.Int("rows", 1, kMaxFeatures)), columns(attributes.Int("columns", 1, kMaxFeatures)) {
    if (rows * columns > INT32_MAX) {
      throw OpError("a matrix of " + ToString(Shape{rows, columns}) + " has " + std::to_string(rows * columns) +
                    " values, must be below 2^31");
    }
  }

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/1, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto index = context.Input<int32_t>(0);
    RequireIndex(index);
    const Layout at(static_cast<size_t>(rows), static_cast<size_t>(columns), index.size);
    const auto plan = context.Output<int32_t>(0, {static_cast<int64_t>(at.end)});
    std::fill_n(plan.data, plan.size, 0);
    const LinearPlanHeader header{kLinearPlanMagic,
                                  kLinearPlanVersion,
                                  static_cast<int32_t>(at.end),
                                  static_cast<int32_t>(rows),
                                  static_cast<int32_t>(columns),
                                  static_cast<int32_t>(index.size),
                                  {}};
    *reinterpret_cast<LinearPlanHeader*>(plan.data) = header;
    ListRows(index, at, plan.data);
    ListColumns(index, at, plan.data);
    const auto order = context.Output<int32_t>(1, index.shape);
    for (size_t i = 0; i < order.size; ++i) order.data[i] = static_cast<int32_t>(i);
  }

  int64_t rows, columns;

 private:
  void RequireIndex(const Tensor<const int32_t>& index) const {
    if (index.shape.size() != 1) throw OpError("index has shape " + ToString(index.shape) + ", must be [nnz]");
    int32_t previous = -1;
    for (size_t i = 0; i < index.size; ++i) {
      const int32_t flat = index.data[i];
      if (flat <= previous || flat >= rows * columns) {
        throw OpError("index[" + std::to_string(i) + "] is " + std::to_string(flat) + " after " +
                      std::to_string(previous) + ", must ascend and stay below " + std::to_string(rows * columns));
      }
      previous = flat;
    }
  }

  void ListRows(const Tensor<const int32_t>& index, const Layout& at, int32_t* plan) const {
    for (size_t i = 0; i < index.size; ++i) {
      ++plan[at.row_start + static_cast<size_t>(index.data[i] / columns) + 1];
      plan[at.column + i] = static_cast<int32_t>(index.data[i] % columns);
    }
    for (size_t row = at.row_start + 1; row < at.column; ++row) plan[row] += plan[row - 1];
  }

  void ListColumns(const Tensor<const int32_t>& index, const Layout& at, int32_t* plan) const {
    for (size_t i = 0; i < index.size; ++i) ++plan[at.column_start + static_cast<size_t>(plan[at.column + i]) + 1];
    for (size_t column = at.column_start + 1; column < at.row; ++column) plan[column] += plan[column - 1];
    std::vector<int32_t> next(plan + at.column_start, plan + at.row);
    for (size_t i = 0; i < index.size; ++i) {
      const auto to = static_cast<size_t>(next[static_cast<size_t>(plan[at.column + i])]++);
      plan[at.row + to] = static_cast<int32_t>(index.data[i] / columns);
      plan[at.place + to] = static_cast<int32_t>(i);
    }
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(LinearPlan)

}  // namespace sparsyedge
