// The layout of all tensors between the images and the loss: float32 [G, C, H+2p, W+2p, 16].
//
// The 16 innermost floats are 16 images of the batch, so vector code meets no border: G = ceil(N/16) groups, a halo of
// p zeros around every plane, zeros in the lanes that a batch of N does not use. Readers rely on those zeros; writers
// provide them.
#pragma once

#include <cstring>

#include "../op.h"

namespace sparsyedge {

inline constexpr size_t kLanes = 16;

struct Lanes {
  size_t groups;
  size_t channels;
  size_t height;  // of a plane, without its halo
  size_t width;
  size_t halo;

  size_t RowStride() const { return (width + 2 * halo) * kLanes; }
  size_t PlaneSize() const { return (height + 2 * halo) * RowStride(); }
  size_t Positions() const { return height * width; }
  size_t Planes() const { return groups * channels; }
  size_t Size() const { return Planes() * PlaneSize(); }

  // Where a plane begins, and where its first position inside the halo is.
  size_t Plane(size_t group, size_t channel) const { return (group * channels + channel) * PlaneSize(); }
  size_t Interior(size_t group, size_t channel) const {
    return Plane(group, channel) + halo * RowStride() + halo * kLanes;
  }

  // How many lanes of a group hold images.
  size_t UsedLanes(size_t group, size_t batch) const {
    const size_t left = batch - group * kLanes;
    return left < kLanes ? left : kLanes;
  }
};

// Writes the zeros around a plane. Call it right after filling the plane, which is then in the cache.
inline void ClearHalo(const Lanes& lanes, float* plane) {
  const size_t halo = lanes.halo;
  if (halo == 0) return;
  const size_t row = lanes.RowStride();
  const size_t side = halo * kLanes;
  std::memset(plane, 0, (halo * row + side) * sizeof(float));
  // The right border of one row and the left border of the next are neighbours.
  float* border = plane + halo * row + side + lanes.width * kLanes;
  for (size_t y = 0; y + 1 < lanes.height; ++y, border += row) std::memset(border, 0, 2 * side * sizeof(float));
  std::memset(border, 0, (side + halo * row) * sizeof(float));
}

// Calls body(offset) for every true position of a plane, row by row, from the offset of its first.
template <typename Body>
void ForEachPosition(const Lanes& lanes, size_t interior, const Body& body) {
  for (size_t y = 0; y < lanes.height; ++y, interior += lanes.RowStride()) {
    for (size_t x = 0; x < lanes.width; ++x) body(interior + x * kLanes);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading inputs and attributes

// No layer pads by more than this; a larger halo is an error in the graph.
inline constexpr int64_t kMaxHalo = 16;

inline size_t ReadHalo(const Attributes& attributes, const char* name) {
  return static_cast<size_t>(attributes.Int(name, 0, kMaxHalo, /*fallback=*/0));
}

inline Shape ShapeOf(const Lanes& lanes) {
  return {static_cast<int64_t>(lanes.groups), static_cast<int64_t>(lanes.channels),
          static_cast<int64_t>(lanes.height + 2 * lanes.halo), static_cast<int64_t>(lanes.width + 2 * lanes.halo),
          static_cast<int64_t>(kLanes)};
}

// The extents of a tensor with a known halo; throws if its shape does not fit the layout.
template <typename T>
Lanes LanesOf(const Tensor<T>& tensor, size_t halo) {
  const Shape& shape = tensor.shape;
  const auto border = static_cast<int64_t>(2 * halo);
  if (shape.size() != 5 || shape[0] < 1 || shape[1] < 1 || shape[2] <= border || shape[3] <= border ||
      shape[4] != static_cast<int64_t>(kLanes)) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(shape) + ", must be [G,C,H+" +
                  std::to_string(border) + ",W+" + std::to_string(border) + ",16] with no empty dimension");
  }
  return {static_cast<size_t>(shape[0]), static_cast<size_t>(shape[1]), static_cast<size_t>(shape[2] - border),
          static_cast<size_t>(shape[3] - border), halo};
}

// The extents of a tensor like `like`, except for its halo, which follows from its shape.
template <typename T>
Lanes LanesLike(const Tensor<T>& tensor, const Lanes& like) {
  Lanes lanes = like;
  if (tensor.shape.size() == 5) {
    const int64_t border = tensor.shape[2] - static_cast<int64_t>(like.height);
    if (border >= 0 && border <= 2 * kMaxHalo) lanes.halo = static_cast<size_t>(border / 2);
  }
  if (tensor.shape != ShapeOf(lanes)) {
    lanes.halo = 0;
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", must be " +
                  ToString(ShapeOf(lanes)) + " or that with a halo around its planes");
  }
  return lanes;
}

// A vector with one element per channel.
inline Tensor<const float> ReadPerChannel(const Context& context, size_t input, const Lanes& lanes) {
  auto tensor = context.Input<float>(input);
  if (tensor.shape != Shape{static_cast<int64_t>(lanes.channels)}) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", must be [" +
                  std::to_string(lanes.channels) + "], one value per channel");
  }
  return tensor;
}

// The number of images; it must fill all groups but the last, and the last by at least one.
inline size_t ReadBatch(const Context& context, size_t input, const Lanes& lanes) {
  const auto batch = context.Input<int64_t>(input);
  if (batch.size != 1) {
    throw OpError("batch has shape " + ToString(batch.shape) + ", must hold exactly 1 value");
  }
  const auto most = static_cast<int64_t>(lanes.groups * kLanes);
  const int64_t least = most - static_cast<int64_t>(kLanes) + 1;
  if (batch.data[0] < least || batch.data[0] > most) {
    throw OpError("batch is " + std::to_string(batch.data[0]) + ", must be from " + std::to_string(least) + " to " +
                  std::to_string(most) + " for " + std::to_string(lanes.groups) + " groups of 16 images");
  }
  return static_cast<size_t>(batch.data[0]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Work split

// Calls body(part) for every part below `count`, on all threads. Small parts share a task; one thread does a whole
// part. The split depends on shapes alone.
template <typename Body>
void ParallelParts(const Context& context, size_t count, size_t floats_per_part, const Body& body) {
  constexpr size_t kMinTask = 16384;  // floats; below this, waking a thread costs more than the work
  const size_t per_task = std::max<size_t>(1, kMinTask / floats_per_part);
  context.ParallelTasks((count + per_task - 1) / per_task, [&body, count, per_task](size_t task) noexcept {
    const size_t end = std::min(count, (task + 1) * per_task);
    for (size_t part = task * per_task; part < end; ++part) body(part);
  });
}

template <typename Body>
void ParallelChannels(const Context& context, const Lanes& lanes, const Body& body) {
  ParallelParts(context, lanes.channels, lanes.groups * lanes.PlaneSize(), body);
}

}  // namespace sparsyedge
