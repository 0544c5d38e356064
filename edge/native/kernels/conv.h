// Sparse convolution on lanes tensors: what a layer's plan holds and what the kernels of each instruction set offer.
//
// Forward and gradient of the input are the same computation, a *pass*: every position of every destination channel
// ("row" of the weight matrix) is a sum over the non-zeros of that row of value * source position. The gradient of the
// input reads dy and writes dx; with stride 2 it is four passes, one for each parity of the row and the column of dx,
// each of them dense in its own positions. The gradient of the weights runs over the lists of the forward pass.
//
// How a pass is walked (measurements: docs/native-ops.md):
//   tile    a few neighbouring positions of one destination channel, whose sums stay in registers: 2x8 with AVX-512
//   cell    some tiles on top of each other. What they need of a block has rows in common, so they are taken one after
//           the other; what no whole tile covers at the end of a row or column falls to smaller ones
//   block   source channels are taken in blocks, so that what a tile needs of a block stays in the L1 cache
//   visit   the non-zeros of one row in one block, in three lists of runs
//   run     1, 2 or 3 non-zeros whose taps are neighbours in a kernel row: each source vector that is loaded serves
//           all of them. At one load per multiply-add the L1 cache is the limit; runs lift it by a quarter
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

inline constexpr int kMaxRun = 3;
inline constexpr int kFloatsPerPosition = 16;
inline constexpr int kMaxVisit = 256;     // non-zeros of a visit; a row with more in a block is visited again
inline constexpr int kSinglesAtOnce = 8;  // runs of length 1 that the gradient of the weights takes in one step

// The non-zeros of one row in one block. Offsets and values are stored in the order of the visits, and inside one as
// runs of 1, of 2 and of 3. An offset is that of the run's first tap from the tile's origin, in floats.
struct Visit {
  int32_t row;
  int16_t first;               // 1 on the row's first visit, which does not read the destination
  int16_t repeats;             // 1 where the next visit has the same offsets: they are stored once
  int32_t run_count[kMaxRun];  // of runs of length 1, 2, 3
};

[[gnu::always_inline]] inline int32_t ValueCount(const Visit& v) {
  return v.run_count[0] + 2 * v.run_count[1] + 3 * v.run_count[2];
}

// Where the values of a visit come from, in a gradient's pass: its i-th is theta[base + places[place_begin + i]].
struct GatherStart {
  int32_t value_begin;  // index of its first value in the pass
  int32_t place_begin;  // visits whose places differ by a constant share them
  int32_t base;
};

// The visits of one block of source channels, for one part of the rows.
struct BlockVisits {
  int32_t visit_begin, visit_end;
  int32_t run_begin;    // index of the first offset
  int32_t value_begin;  // index of the first value
};

// Everything about a pass that does not change between steps. Sizes and steps of tensors count positions (16 lanes).
struct PassShape {
  int32_t rows, channels;
  int32_t positions_h, positions_w;  // what the pass computes of each destination plane
  int32_t step;                      // source positions between neighbouring destinations: 1 or 2
  int32_t reach_h, reach_w;          // distance from the first tap to the last
  int32_t src_row, src_col;          // of position (0, 0)'s first tap, halo included
  int32_t src_pitch, src_plane;
  int32_t dst_row, dst_col, dst_step;  // of position (0, 0), halo included, and from there to its neighbours: 1 or 2
  int32_t dst_pitch, dst_plane;
  int32_t tile_h, tile_w;
  int32_t cell_h;         // a cell is as wide as a tile
  int32_t block, blocks;  // source channels per block, and how many blocks
  int32_t row_parts;      // rows are split for threads when a plane has few tiles
  int32_t live;           // values in the lists; taps that only ever meet the halo are left out
  int32_t run_total, visit_total, place_total;
};

[[gnu::always_inline]] inline int CellsPerRow(const PassShape& s) { return (s.positions_w + s.tile_w - 1) / s.tile_w; }
[[gnu::always_inline]] inline int CellCount(const PassShape& s) {
  return (s.positions_h + s.cell_h - 1) / s.cell_h * CellsPerRow(s);
}

// The positions of one cell.
struct Cell {
  int top, left, bottom, right;
};

[[gnu::always_inline]] inline Cell CellAt(const PassShape& s, int index) {
  const int top = index / CellsPerRow(s) * s.cell_h, left = index % CellsPerRow(s) * s.tile_w;
  const int bottom = top + s.cell_h, right = left + s.tile_w;
  return {top, left, bottom < s.positions_h ? bottom : s.positions_h, right < s.positions_w ? right : s.positions_w};
}

struct Pass {
  PassShape shape;
  const BlockVisits* blocks;  // (row_parts, blocks)
  const Visit* visits;
  const int32_t* offsets;     // and kSinglesAtOnce - 1 more that may be read
  const GatherStart* gather;  // per visit; null in the forward pass, whose values are in the order of the layer's theta
  const int32_t* places;
};

// The part of a pass that one call works on.
struct PassPart {
  int row_part;
  int cell_begin, cell_end;
};

// The planes of one group of a saved activation (saved.h) that is kept as masks and values; H and W are true sizes.
struct MaskedPlanes {
  const uint32_t* row_start;  // (C, H)
  const uint16_t* mask;       // (C, H, W)
  const float* values;
  int32_t height, width, halo;
};

// Tensors are those of one group of 16 images, halo included.
struct ConvKernels {
  int tile_positions;  // in a register tile, a power of two
  int block_bytes;     // of the L1 cache that the source of a tile in one block may take

  // Writes the part's positions of dst. `init`, of dst's shape, is what the sums begin with; null: with zero.
  void (*convolve)(const Pass& pass, const PassPart& part, const float* src, const float* values, const float* init,
                   float* dst);

  // Adds to gradient[i], for each value i of the forward pass in the part's rows, what the part's cells contribute.
  void (*grad_weight)(const Pass& pass, const PassPart& part, const float* src, const float* dy, float* gradient);

  // Writes one channel of a saved activation.
  void (*unpack_plane)(const MaskedPlanes& src, int channel, float* plane);
};

}  // namespace sparsyedge::kernels
