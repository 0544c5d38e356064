// Spectral re-parametrisation: theta = w |w| / sigma, where sigma is the spectral norm of the layer's |W| after one
// power iteration from a vector of ones, or with `exact` the largest singular value of W itself (singular_value.h). W
// has a row per output channel; ops get its non-zeros and their positions.
//
// A zero weight has theta = 0 and gradient 0: the slope of w |w| is zero there, the slope of |w| inside the norm counts
// as zero, and that of W inside the exact one is masked. The gradient includes the norm, so each weight's gradient
// depends on all others.
#include <cmath>

#include "hyperparameters.h"
#include "singular_value.h"

namespace sparsyedge {
namespace {

constexpr Port kPositionsPort = {"positions", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};

// The shape of W, which turns flat positions into rows and columns.
class Matrix {
 public:
  explicit Matrix(const Attributes& attributes)
      : rows(static_cast<size_t>(attributes.Int("rows", 1, INT32_MAX))),
        columns(static_cast<size_t>(attributes.Int("columns", 1, INT32_MAX))),
        floor(attributes.Float("floor")),
        exact(attributes.Int("exact", 0, 1, 0) == 1) {}

  // Half a position keeps rounding away from the next row; an integer division would take several times as long.
  size_t RowOf(int32_t position) const { return static_cast<size_t>((position + 0.5) * rows_per_position_); }
  size_t ColumnOf(int32_t position) const { return static_cast<size_t>(position) - RowOf(position) * columns; }

  void Require(const Tensor<const float>& w, const Tensor<const int32_t>& positions) const {
    RequireSameShape(positions, w);
    for (size_t i = 0; i < positions.size; ++i) {
      const int32_t position = positions.data[i];
      if (position < 0 || static_cast<size_t>(position) >= rows * columns) {
        throw OpError("positions[" + std::to_string(i) + "] is " + std::to_string(position) +
                      ", must be at least 0 and below " + std::to_string(rows * columns));
      }
    }
  }

  const size_t rows, columns;
  const float floor;  // keeps an empty layer from dividing by zero
  const bool exact;   // the norm of W, not an estimate of |W|'s

 private:
  const double rows_per_position_ = 1.0 / static_cast<double>(columns);
};

double Norm(const std::vector<double>& vector, double floor) {
  double sum = floor;
  for (const double value : vector) sum += value * value;
  return std::sqrt(sum);
}

// W for the search of its largest singular value.
class Product {
 public:
  Product(const Matrix& matrix, const Tensor<const float>& w, const int32_t* positions)
      : matrix_(matrix), w_(w), positions_(positions) {}

  size_t rows() const { return matrix_.rows; }
  size_t columns() const { return matrix_.columns; }

  // out += W in and out += W^T in, summed in the order of the values.
  void Apply(const std::vector<double>& in, std::vector<double>& out) const {
    for (size_t i = 0; i < w_.size; ++i) {
      out[matrix_.RowOf(positions_[i])] += double{w_.data[i]} * in[matrix_.ColumnOf(positions_[i])];
    }
  }
  void ApplyTransposed(const std::vector<double>& in, std::vector<double>& out) const {
    for (size_t i = 0; i < w_.size; ++i) {
      out[matrix_.ColumnOf(positions_[i])] += double{w_.data[i]} * in[matrix_.RowOf(positions_[i])];
    }
  }

 private:
  const Matrix& matrix_;
  const Tensor<const float>& w_;
  const int32_t* positions_;
};

// The power iteration: left = |W| 1, u = left / |left|, right = u |W|, sigma = |right|. Sums are taken in order, in
// double precision, on any number of threads.
struct Iteration {
  Iteration(const Matrix& matrix, const Tensor<const float>& w, const int32_t* positions)
      : u(matrix.rows), right(matrix.columns) {
    for (size_t i = 0; i < w.size; ++i) u[matrix.RowOf(positions[i])] += std::fabs(w.data[i]);
    left_norm = Norm(u, matrix.floor);
    for (double& value : u) value /= left_norm;
    for (size_t i = 0; i < w.size; ++i) {
      right[matrix.ColumnOf(positions[i])] += u[matrix.RowOf(positions[i])] * std::fabs(w.data[i]);
    }
    sigma = Norm(right, matrix.floor);
  }

  std::vector<double> u, right;
  double left_norm, sigma;
};

float SigmaOf(const Matrix& matrix, const Tensor<const float>& w, const int32_t* positions) {
  if (!matrix.exact) return static_cast<float>(Iteration(matrix, w, positions).sigma);
  const double value = LargestSingular(Product(matrix, w, positions)).value;
  return static_cast<float>(std::sqrt(value * value + matrix.floor));
}

struct SpectralProp {
  static constexpr const char* kName = "SpectralProp";
  static constexpr Port kInputs[] = {{"w"}, kPositionsPort};
  static constexpr Port kOutputs[] = {{"theta"}};

  explicit SpectralProp(const Attributes& attributes) : matrix(attributes) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const auto positions = context.Input<int32_t>(1);
    matrix.Require(w, positions);
    const float sigma = SigmaOf(matrix, w, positions.data);
    ParallelFill(context, context.Output<float>(0, w.shape),
                 [w = w.data, sigma](size_t i) { return w[i] * std::fabs(w[i]) / sigma; });
  }

  Matrix matrix;
};

// What the norm adds to the gradient of |w| at a place: u[row] * right[column] + left[row].
struct NormGradient {
  NormGradient(const Matrix& matrix, const Iteration& forward, const Tensor<const float>& w, const float* dtheta,
               const int32_t* positions)
      : u(forward.u), right(forward.right), left(matrix.rows) {
    double product = 0.0;
    for (size_t i = 0; i < w.size; ++i) product += double{dtheta[i]} * w.data[i] * std::fabs(w.data[i]);
    const double dsigma = -product / (forward.sigma * forward.sigma);
    for (double& value : right) value *= dsigma / forward.sigma;
    for (size_t i = 0; i < w.size; ++i) {
      left[matrix.RowOf(positions[i])] += std::fabs(w.data[i]) * right[matrix.ColumnOf(positions[i])];
    }
    // Through u = left / |left|: what lies along u does not move it.
    double along = 0.0;
    for (size_t row = 0; row < matrix.rows; ++row) along += left[row] * u[row];
    for (size_t row = 0; row < matrix.rows; ++row) left[row] = (left[row] - along * u[row]) / forward.left_norm;
  }

  const std::vector<double>& u;
  std::vector<double> right, left;
};

// The gradient of w[i], in double precision; a zero has none.
class Gradient {
 public:
  Gradient(const Matrix& matrix, const Tensor<const float>& w, const Tensor<const float>& dtheta,
           const Tensor<const int32_t>& positions)
      : matrix_(matrix), w_(w.data), dtheta_(dtheta.data), positions_(positions.data) {
    if (matrix.exact) {
      TakeExact(w);
    } else {
      const Iteration forward(matrix, w, positions_);
      NormGradient norm(matrix, forward, w, dtheta_, positions_);
      sigma_ = forward.sigma;
      u_ = forward.u;
      right_ = std::move(norm.right);
      left_ = std::move(norm.left);
    }
  }

  double operator()(size_t i) const {
    if (w_[i] == 0.0f) return 0.0;
    const size_t row = matrix_.RowOf(positions_[i]), column = matrix_.ColumnOf(positions_[i]);
    const double slope = u_[row] * right_[column] + left_[row];
    // The norm of |W| sees magnitudes, that of W the weights themselves.
    const bool turns = !matrix_.exact && w_[i] < 0.0f;
    return 2.0 * dtheta_[i] * std::fabs(w_[i]) / sigma_ + (turns ? -slope : slope);
  }

 private:
  // The slope of the largest singular value is u v^T.
  void TakeExact(const Tensor<const float>& w) {
    Singular found = LargestSingular(Product(matrix_, w, positions_));
    sigma_ = std::sqrt(found.value * found.value + matrix_.floor);
    double product = 0.0;
    for (size_t i = 0; i < w.size; ++i) product += double{dtheta_[i]} * w.data[i] * std::fabs(w.data[i]);
    const double dsigma = -product / (sigma_ * sigma_) * (found.value / sigma_);
    u_ = std::move(found.left);
    right_ = std::move(found.right);
    for (double& value : right_) value *= dsigma;
    left_.assign(matrix_.rows, 0.0);
  }

  const Matrix& matrix_;
  const float* w_;
  const float* dtheta_;
  const int32_t* positions_;
  double sigma_ = 0.0;
  std::vector<double> u_, right_, left_;
};

struct SpectralGrad {
  static constexpr const char* kName = "SpectralGrad";
  static constexpr Port kInputs[] = {{"w"}, {"dtheta"}, kPositionsPort};
  static constexpr Port kOutputs[] = {{"dw"}};

  explicit SpectralGrad(const Attributes& attributes) : matrix(attributes) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const auto dtheta = context.Input<float>(1);
    const auto positions = context.Input<int32_t>(2);
    RequireSameShape(dtheta, w);
    matrix.Require(w, positions);
    const Gradient gradient(matrix, w, dtheta, positions);
    ParallelFill(context, context.Output<float>(0, w.shape),
                 [&gradient](size_t i) { return static_cast<float>(gradient(i)); });
  }

  Matrix matrix;
};

// w_new = w - lr * (dw + weight_decay * w). A zero stays exactly zero.
struct SpectralStep {
  static constexpr const char* kName = "SpectralStep";
  static constexpr Port kInputs[] = {{"w"}, {"dtheta"}, kPositionsPort, {"weight_decay"}, {"lr"}};
  static constexpr Port kOutputs[] = {{"w_new"}};
  static constexpr InPlace kInPlace[] = {{/*input=*/0, /*output=*/0}};

  explicit SpectralStep(const Attributes& attributes) : matrix(attributes) {}

  static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }

  void Compute(const Context& context) const {
    const auto w = context.Input<float>(0);
    const auto dtheta = context.Input<float>(1);
    const auto positions = context.Input<int32_t>(2);
    RequireSameShape(dtheta, w);
    matrix.Require(w, positions);
    const float decay = ReadWeightDecay(context, 3);
    const float lr = ReadLearningRate(context, 4);
    const Gradient gradient(matrix, w, dtheta, positions);
    ParallelFill(context, context.Output<float>(0, w.shape), [&gradient, w = w.data, decay, lr](size_t i) {
      if (w[i] == 0.0f) return 0.0f;
      return static_cast<float>(w[i] - lr * (gradient(i) + double{decay} * w[i]));
    });
  }

  Matrix matrix;
};

}  // namespace

SPARSYEDGE_DEFINE_OP(SpectralGrad)
SPARSYEDGE_DEFINE_OP(SpectralProp)
SPARSYEDGE_DEFINE_OP(SpectralStep)

}  // namespace sparsyedge
