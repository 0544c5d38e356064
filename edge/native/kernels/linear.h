// A matrix with few non-zeros times a block of tokens, and the gradient of its non-zeros (kernels/linear.inc).
//
// A *token* is one position of one sample: a row of [tokens, features], or a pixel of [N, features, ...plane]. A
// *block* holds some of them as float [features][pitch], neighbouring tokens innermost, so that one non-zero multiplies
// whole vectors. `pitch` is the number of tokens rounded up to 16; what is beyond the tokens are zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

inline constexpr size_t kRowsAtOnce = 16;       // destination features between two transpositions
inline constexpr size_t kNonZerosAtOnce = 8;    // of a row, per step of the weight gradient
inline constexpr size_t kMaxBlockTokens = 128;  // in any instruction set

// The non-zeros of a matrix, row by row.
struct SparseRows {
  const int32_t* start;   // where each row's non-zeros begin, and where the last one's end
  const int32_t* source;  // the column of each, and kNonZerosAtOnce - 1 more that may be read
};

// Tokens of a block. Pointers lead to its first feature.
struct TokenBlock {
  size_t tokens, pitch;
};

struct LinearKernels {
  size_t block_tokens;  // at most, a multiple of 16

  // Writes features [0, features) of x[tokens][x_pitch] to block[features][pitch].
  void (*to_block)(const TokenBlock&, size_t features, const float* x, size_t x_pitch, float* block);

  // The other way.
  void (*from_block)(const TokenBlock&, size_t features, const float* block, float* y, size_t y_pitch);

  // dst[row - row_begin] = bias[row] + the sum of values[i] * src[source[i]]; bias may be null.
  void (*multiply)(const TokenBlock&, const SparseRows&, size_t row_begin, size_t row_end, const float* values,
                   const float* bias, const float* src, float* dst);

  // gradient[i] += the sum over the tokens of dy[row - row_begin] * src[source[i]], for the non-zeros of these rows.
  void (*grad_weight)(const TokenBlock&, const SparseRows&, size_t row_begin, size_t row_end, const float* src,
                      const float* dy, float* gradient);

  // Writes 16 floats for each mask, whose non-zeros follow each other in `values`; returns how many there are.
  size_t (*unpack)(size_t count, const uint16_t* mask, const float* values, float* x);
};

}  // namespace sparsyedge::kernels
