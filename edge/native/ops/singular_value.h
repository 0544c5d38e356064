// The largest singular value of a matrix that is given by its products with vectors, and the two vectors that belong to
// it: locally optimal conjugate gradients on W^T W. A step costs two products, as one of the power iteration does, but
// needs the root of its number of steps where the largest values lie close together.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace sparsyedge {

using Vector = std::vector<double>;

struct Singular {
  double value = 0.0;
  Vector left, right;  // unit vectors; zero if the matrix is
};

inline double Dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline void AddScaled(Vector& to, double factor, const Vector& what) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * what[i];
}

inline void Scale(Vector& vector, double factor) {
  for (double& value : vector) value *= factor;
}

// The eigenvector of the largest eigenvalue of a symmetric 3x3 matrix, by Jacobi's rotations.
inline std::array<double, 3> TopEigenvector(std::array<std::array<double, 3>, 3> a) {
  std::array<std::array<double, 3>, 3> v{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (int p = 0; p < 2; ++p) {
      for (int q = p + 1; q < 3; ++q) {
        if (a[p][q] == 0.0) continue;
        const double angle = 0.5 * std::atan2(2.0 * a[p][q], a[p][p] - a[q][q]);
        const double c = std::cos(angle), s = std::sin(angle);
        for (int k = 0; k < 3; ++k) {
          const double x = a[k][p], y = a[k][q];
          a[k][p] = c * x + s * y;
          a[k][q] = c * y - s * x;
        }
        for (int k = 0; k < 3; ++k) {
          const double x = a[p][k], y = a[q][k];
          a[p][k] = c * x + s * y;
          a[q][k] = c * y - s * x;
        }
        for (int k = 0; k < 3; ++k) {
          const double x = v[k][p], y = v[k][q];
          v[k][p] = c * x + s * y;
          v[k][q] = c * y - s * x;
        }
      }
    }
  }
  int top = 0;
  for (int k = 1; k < 3; ++k) {
    if (a[k][k] > a[top][top]) top = k;
  }
  return {v[0][top], v[1][top], v[2][top]};
}

// A direction and what W^T W makes of it.
struct Direction {
  Vector x, ax;

  // Remove what lies along a unit direction, and make the rest a unit vector; false if nothing is left.
  bool OrthogonaliseTo(const std::vector<const Direction*>& others) {
    const double before = std::sqrt(Dot(x, x));
    if (before == 0.0) return false;
    // Twice: the first time leaves rounding errors of the size of what it removes.
    for (int pass = 0; pass < 2; ++pass) {
      for (const Direction* other : others) {
        const double along = Dot(x, other->x);
        AddScaled(x, -along, other->x);
        AddScaled(ax, -along, other->ax);
      }
    }
    const double length = std::sqrt(Dot(x, x));
    if (length <= 1e-10 * before) return false;
    Scale(x, 1.0 / length);
    Scale(ax, 1.0 / length);
    return true;
  }
};

// `matrix` has rows(), columns(), Apply and ApplyTransposed, which add their product to a vector. All sums are taken in
// order, so the result does not depend on the number of threads.
template <typename Matrix>
Singular LargestSingular(const Matrix& matrix) {
  constexpr int kMostSteps = 500;
  constexpr double kResidual = 1e-8;  // relative; the value's own error is of the order of its square
  const auto square = [&matrix](const Vector& x) {
    Vector middle(matrix.rows()), result(matrix.columns());
    matrix.Apply(x, middle);
    matrix.ApplyTransposed(middle, result);
    return result;
  };
  Direction best;
  best.x.resize(matrix.columns());
  // A fixed pattern without structure: no singular vector is likely to be orthogonal to it.
  uint32_t state = 12345;
  for (double& value : best.x) {
    state = state * 1664525u + 1013904223u;
    value = (static_cast<double>(state >> 8) + 0.5) / (1u << 24) - 0.5;
  }
  Scale(best.x, 1.0 / std::sqrt(Dot(best.x, best.x)));
  best.ax = square(best.x);
  Direction last;  // the direction of the step before; empty at first
  double rho = Dot(best.x, best.ax);
  for (int step = 0; step < kMostSteps; ++step) {
    Direction residual{best.ax, {}};
    AddScaled(residual.x, -rho, best.x);
    if (std::sqrt(Dot(residual.x, residual.x)) <= kResidual * rho) break;
    Scale(residual.x, 1.0 / std::sqrt(Dot(residual.x, residual.x)));
    residual.ax = square(residual.x);
    std::vector<const Direction*> basis{&best};
    if (residual.OrthogonaliseTo(basis)) basis.push_back(&residual);
    if (!last.x.empty() && last.OrthogonaliseTo(basis)) basis.push_back(&last);
    if (basis.size() == 1) break;
    std::array<std::array<double, 3>, 3> small{};
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        // W^T W has no negative eigenvalue, so a row that is not there never wins.
        small[i][j] = i < basis.size() && j < basis.size() ? Dot(basis[i]->x, basis[j]->ax) : (i == j ? -1.0 : 0.0);
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < i; ++j) small[i][j] = small[j][i] = 0.5 * (small[i][j] + small[j][i]);
    }
    const std::array<double, 3> weights = TopEigenvector(small);
    Direction move{Vector(matrix.columns()), Vector(matrix.columns())}, next = best;
    Scale(next.x, weights[0]);
    Scale(next.ax, weights[0]);
    for (size_t i = 1; i < basis.size(); ++i) {
      AddScaled(move.x, weights[i], basis[i]->x);
      AddScaled(move.ax, weights[i], basis[i]->ax);
    }
    AddScaled(next.x, 1.0, move.x);
    AddScaled(next.ax, 1.0, move.ax);
    const double length = std::sqrt(Dot(next.x, next.x));
    Scale(next.x, 1.0 / length);
    Scale(next.ax, 1.0 / length);
    best = std::move(next);
    last = std::move(move);
    rho = Dot(best.x, best.ax);
  }
  Singular found;
  found.right = std::move(best.x);
  found.left.resize(matrix.rows());
  matrix.Apply(found.right, found.left);
  found.value = std::sqrt(Dot(found.left, found.left));
  if (found.value > 0.0) Scale(found.left, 1.0 / found.value);
  return found;
}

}  // namespace sparsyedge
