#include "linear_plan.h"

#include <cstring>
#include <numeric>

#include "../kernels/dispatch.h"

namespace sparsyedge {
namespace {

constexpr size_t kHeaderSize = sizeof(LinearPlanHeader) / sizeof(int32_t);
constexpr size_t kSlack = kernels::kNonZerosAtOnce - 1;

// Where a plan's arrays begin, in int32 from its header.
struct Layout {
  explicit Layout(const LinearPlanHeader& h)
      : row_start(kHeaderSize),
        column(row_start + (Size(h.column_bands) + 1) * Size(h.rows)),
        column_start(column + Size(h.nnz) + kSlack),
        row(column_start + (Size(h.row_bands) + 1) * Size(h.columns)),
        place(row + Size(h.nnz) + kSlack),
        end(place + Size(h.nnz)) {}

  size_t row_start, column, column_start, row, place, end;

 private:
  static size_t Size(int32_t count) { return static_cast<size_t>(count); }
};

}  // namespace

LinearPlanArrays ReadLinearPlan(const Tensor<const int32_t>& plan) {
  const auto& header = *reinterpret_cast<const LinearPlanHeader*>(plan.data);
  if (plan.size < kHeaderSize || header.magic != kLinearPlanMagic || header.version != kLinearPlanVersion) {
    throw OpError(std::string(plan.name) + " of shape " + ToString(plan.shape) +
                  " is not the output of LinearPlan: its first values must be " + std::to_string(kLinearPlanMagic) +
                  ", " + std::to_string(kLinearPlanVersion));
  }
  const Layout at(header);
  if (plan.size != at.end) {
    throw OpError(std::string(plan.name) + " has " + std::to_string(plan.size) + " values, must have " +
                  std::to_string(at.end) + " as its header says");
  }
  const auto rows = static_cast<size_t>(header.rows), columns = static_cast<size_t>(header.columns);
  return {header.rows,
          header.columns,
          header.nnz,
          {rows, static_cast<size_t>(header.column_bands), plan.data + at.row_start, plan.data + at.column},
          {columns, static_cast<size_t>(header.row_bands), plan.data + at.column_start, plan.data + at.row},
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

// Columns that share a band: as many as L1 takes, but enough that a row has some work in each, because it loads and
// stores its sums there.
struct Bands {
  static constexpr double kNonZeros = 10.0;  // in a row and a band

  Bands(int64_t columns, double density) {
    const auto least = static_cast<int64_t>(kernels::Kernels().linear.band_columns);
    const auto busy = static_cast<int64_t>(std::min(kNonZeros / density, static_cast<double>(columns)));
    count = static_cast<int32_t>(std::max<int64_t>(1, columns / std::max(least, busy)));
    width = static_cast<int32_t>((columns + count - 1) / count);
  }

  int32_t count, width;
};

// Writes where each row's sources begin in every band. The sources of a row ascend, and those of the next row follow.
void ListStarts(const std::vector<int32_t>& counts, const Bands& bands, const int32_t* source, int32_t* start) {
  const size_t rows = counts.size();
  int32_t next = 0;
  for (size_t row = 0; row < rows; ++row) {
    const int32_t end = next + counts[row];
    for (int32_t band = 0; band <= bands.count; ++band) {
      while (next < end && source[next] < band * bands.width) ++next;
      start[static_cast<size_t>(band) * rows + row] = next;
    }
  }
}

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
    const double density = static_cast<double>(index.size) / static_cast<double>(rows * columns);
    const Bands of_columns(columns, density), of_rows(rows, density);
    LinearPlanHeader header{kLinearPlanMagic,
                            kLinearPlanVersion,
                            0,
                            static_cast<int32_t>(rows),
                            static_cast<int32_t>(columns),
                            static_cast<int32_t>(index.size),
                            of_columns.count,
                            of_rows.count};
    const Layout at(header);
    header.size = static_cast<int32_t>(at.end);
    const auto plan = context.Output<int32_t>(0, {static_cast<int64_t>(at.end)});
    std::fill_n(plan.data, plan.size, 0);
    std::memcpy(plan.data, &header, sizeof(header));
    ListRows(index, at, of_columns, plan.data);
    ListColumns(index, at, of_rows, plan.data);
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

  void ListRows(const Tensor<const int32_t>& index, const Layout& at, const Bands& bands, int32_t* plan) const {
    std::vector<int32_t> counts(static_cast<size_t>(rows));
    for (size_t i = 0; i < index.size; ++i) {
      ++counts[static_cast<size_t>(index.data[i] / columns)];
      plan[at.column + i] = static_cast<int32_t>(index.data[i] % columns);
    }
    ListStarts(counts, bands, plan + at.column, plan + at.row_start);
  }

  void ListColumns(const Tensor<const int32_t>& index, const Layout& at, const Bands& bands, int32_t* plan) const {
    std::vector<int32_t> counts(static_cast<size_t>(columns));
    for (size_t i = 0; i < index.size; ++i) ++counts[static_cast<size_t>(plan[at.column + i])];
    std::vector<int32_t> next(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), next.begin(), 0);
    for (size_t i = 0; i < index.size; ++i) {
      const auto to = static_cast<size_t>(next[static_cast<size_t>(plan[at.column + i])]++);
      plan[at.row + to] = static_cast<int32_t>(index.data[i] / columns);
      plan[at.place + to] = static_cast<int32_t>(i);
    }
    ListStarts(counts, bands, plan + at.row, plan + at.column_start);
  }
};

}  // namespace

SPARSYEDGE_DEFINE_OP(LinearPlan)

}  // namespace sparsyedge
