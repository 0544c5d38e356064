// The plan of a sparse matrix [rows, columns], row-major: LinearPlan makes it once per round, and every op of the layer
// reads it. Values follow the index: rows one after the other, columns ascending.
//
// A LinearPlanHeader, then int32 arrays that list the non-zeros by row and by column (kernels/linear.h explains bands):
// row_start[bands + 1, rows], column[nnz + slack]; column_start[bands of rows + 1, columns], row[nnz + slack],
// place[nnz]. The i-th of the latter list is value place[i].
#pragma once

#include "../kernels/linear.h"
#include "../op.h"

namespace sparsyedge {

inline constexpr int32_t kLinearPlanMagic = 0x4e4c504c;  // "LPLN"
inline constexpr int32_t kLinearPlanVersion = 1;

struct LinearPlanHeader {
  int32_t magic, version;
  int32_t size;  // of the whole plan, in int32
  int32_t rows, columns, nnz;
  int32_t column_bands, row_bands;
};
static_assert(sizeof(LinearPlanHeader) == 8 * sizeof(int32_t));

// A plan's arrays, pointing into it.
struct LinearPlanArrays {
  int32_t row_count, column_count, nnz;
  kernels::SparseRows rows;     // of the matrix: a source is a column
  kernels::SparseRows columns;  // of the matrix: a source is a row
  const int32_t* place;

  int64_t weights() const { return int64_t{row_count} * column_count; }
  bool full() const { return nnz == weights(); }
};

inline constexpr Port kLinearPlanPort = {"plan", ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};

// The arrays of a plan; throws if the tensor is not one.
LinearPlanArrays ReadLinearPlan(const Tensor<const int32_t>& plan);

// Throws unless the tensor has one value for each non-zero.
void RequireValues(const Tensor<const float>& theta, const LinearPlanArrays& plan);

}  // namespace sparsyedge
