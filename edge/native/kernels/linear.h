// A matrix with few non-zeros times a block of tokens, and the gradient of its non-zeros (kernels/linear.inc).
//
// A *token* is one position of one sample: a row of [tokens, features], or a pixel of [N, features, ...plane]. A
// *block* holds some of them as float [features][pitch], neighbouring tokens innermost, so that one non-zero multiplies
// whole vectors. `pitch` is the number of tokens rounded up to 16; beyond the tokens are zeros.
//
// The columns of the matrix come in *bands*, few enough that their features of a block stay in L1. A row meets one band
// after the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

inline constexpr size_t kNonZerosAtOnce = 8;  // of a row, per step of the weight gradient

// The non-zeros of a matrix, row by row, columns ascending. Row r has [start[band * rows + r], start[(band + 1) * rows
// + r]) in a band.
struct SparseRows {
  size_t rows, bands;
  const int32_t* start;   // (bands + 1, rows)
  const int32_t* source;  // the column of each, and kNonZerosAtOnce - 1 more that may be read
};

struct TokenBlock {
  size_t tokens, pitch;
};

struct LinearKernels {
  size_t block_tokens;  // at most, a multiple of 16
  size_t band_columns;  // whose features of a whole block stay in L1

  // Writes x[tokens][x_pitch] to block[features][pitch], and zeros up to a multiple of 16 tokens.
  void (*to_block)(const TokenBlock&, size_t features, const float* x, size_t x_pitch, float* block);

  // The other way.
  void (*from_block)(const TokenBlock&, size_t features, const float* block, float* y, size_t y_pitch);

  // dst[row] = bias[row] + the sum of values[i] * src[source[i]]; bias may be null.
  void (*multiply)(const TokenBlock&, const SparseRows&, const float* values, const float* bias, const float* src,
                   float* dst);

  // gradient[i] += the sum over the tokens of dy[row] * src[source[i]].
  void (*grad_weight)(const TokenBlock&, const SparseRows&, const float* src, const float* dy, float* gradient);

  // Writes 16 floats for each mask, whose non-zeros follow each other in `values`; returns how many there are.
  size_t (*unpack)(size_t count, const uint16_t* mask, const float* values, float* x);
};

}  // namespace sparsyedge::kernels
