// Sparse convolution on lanes tensors: what a plan holds and which kernels each instruction set offers.
//
// Forward and input gradient are the same computation, a *pass*: each position of a destination channel (a "row" of the
// weight matrix) is a sum of value * source position over the non-zeros of that row. The input gradient reads dy and
// writes dx; with stride 2 it takes four passes, one per parity of dx's row and column, each dense in its own
// positions. The weight gradient walks the lists of the forward pass.
//
// The parts of a pass (measurements: docs/explanation/native-ops.md):
//   tile    a few neighbouring positions of one destination channel, whose sums stay in registers: 2x8 with AVX-512
//   cell    tiles stacked on top of each other, processed in a row because they share source rows. Smaller tiles cover
//           what is left at the end of a row or column
//   block   source channels processed together, few enough that a tile's source stays in L1
//   visit   the non-zeros of one row in one block, in three lists of runs
//   run     1, 2 or 3 non-zeros with neighbouring taps in a kernel row, which share each source vector they load. L1
//           limits one load per multiply-add; runs are a quarter faster
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::kernels {

inline constexpr int kMaxRun = 3;
inline constexpr int kFloatsPerPosition = 16;
inline constexpr int kMaxVisit = 256;     // non-zeros in a visit; a row with more in a block gets another visit
inline constexpr int kSinglesAtOnce = 8;  // runs of length 1 per step of the weight gradient

// The non-zeros of one row in one block. Offsets and values are stored visit by visit, and within a visit as runs of 1,
// of 2 and of 3. An offset leads from the tile's origin to the run's first tap, in floats.
struct Visit {
  int32_t row;
  int16_t first;               // 1 on the row's first visit, which ignores the destination's content
  int16_t repeats;             // 1 if the next visit has the same offsets, which are then stored once
  int32_t run_count[kMaxRun];  // of runs of length 1, 2, 3
};

[[gnu::always_inline]] inline int32_t ValueCount(const Visit& v) {
  return v.run_count[0] + 2 * v.run_count[1] + 3 * v.run_count[2];
}

// Where a visit of the input gradient finds its values: the i-th is theta[base + places[place_begin + i]].
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

// What stays the same between steps. Sizes and steps of tensors count positions (16 lanes).
struct PassShape {
  int32_t rows, channels;
  int32_t positions_h, positions_w;  // computed in each destination plane
  int32_t step;                      // source positions between neighbouring destinations: 1 or 2
  int32_t reach_h, reach_w;          // distance from the first tap to the last
  int32_t src_row, src_col;          // of position (0, 0)'s first tap, halo included
  int32_t src_pitch, src_plane;
  int32_t dst_row, dst_col, dst_step;  // of position (0, 0), halo included, and from there to its neighbours: 1 or 2
  int32_t dst_pitch, dst_plane;
  int32_t tile_h, tile_w;
  int32_t cell_h;         // a cell is as wide as a tile
  int32_t block, blocks;  // source channels per block, and how many blocks
  int32_t row_parts;      // splits rows among threads when a plane has few tiles
  int32_t live;           // values in the lists, without taps that only meet the halo
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

// What one call works on.
struct PassPart {
  int row_part;
  int cell_begin, cell_end;
};

// One group of a saved activation (saved.h), kept as masks and values. H and W exclude the halo.
struct MaskedPlanes {
  const uint32_t* row_start;  // (C, H)
  const uint16_t* mask;       // (C, H, W)
  const float* values;
  int32_t height, width, halo;
};

// Tensors are those of one group of 16 images, halo included.
struct ConvKernels {
  int tile_positions;  // in a register tile, a power of two
  int block_bytes;     // L1 cache that a tile's source in one block may use

  // Writes the part's positions of dst. Sums start from `init`, of dst's shape, or from zero if it is null.
  void (*convolve)(const Pass& pass, const PassPart& part, const float* src, const float* values, const float* init,
                   float* dst);

  // Adds what the part's cells contribute to gradient[i], for each value i of the forward pass in the part's rows.
  void (*grad_weight)(const Pass& pass, const PassPart& part, const float* src, const float* dy, float* gradient);

  // Unpacks one channel of a saved activation.
  void (*unpack_plane)(const MaskedPlanes& src, int channel, float* plane);
};

}  // namespace sparsyedge::kernels
