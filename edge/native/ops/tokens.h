// A tensor as tokens of some features: [..., features], or [N, features, ...plane] like an image. Work goes block by
// block (kernels/linear.h).
#pragma once

#include <cstring>

#include "../kernels/dispatch.h"
#include "../op.h"

namespace sparsyedge {

inline bool ReadChannelsLast(const Attributes& attributes) {
  return attributes.Int("channels_last", 0, 1, /*fallback=*/1) != 0;
}

struct Tokens {
  bool channels_last;
  size_t features;
  size_t plane;  // tokens of a sample whose features are a plane apart; 1 if features are neighbours
  size_t count;

  // The tokens of a block, from the tensor to block[features][pitch].
  void Load(const float* tensor, size_t first, const kernels::TokenBlock& b, float* block) const noexcept {
    if (channels_last) {
      return kernels::Kernels().linear.to_block(b, features, tensor + first * features, features, block);
    }
    ForEachPiece(first, b.tokens, [&](size_t at, size_t token, size_t length) {
      for (size_t i = 0; i < features; ++i) {
        std::memcpy(block + i * b.pitch + token, tensor + at + i * plane, length * sizeof(float));
      }
    });
    if (b.tokens == b.pitch) return;
    for (size_t i = 0; i < features; ++i) std::fill(block + i * b.pitch + b.tokens, block + (i + 1) * b.pitch, 0.0f);
  }

  // The other way.
  void Store(const float* block, size_t first, const kernels::TokenBlock& b, float* tensor) const noexcept {
    if (channels_last) {
      return kernels::Kernels().linear.from_block(b, features, block, tensor + first * features, features);
    }
    ForEachPiece(first, b.tokens, [&](size_t at, size_t token, size_t length) {
      for (size_t i = 0; i < features; ++i) {
        std::memcpy(tensor + at + i * plane, block + i * b.pitch + token, length * sizeof(float));
      }
    });
  }

 private:
  // Calls body(offset of the first feature in the tensor, token of the block, length) for each sample's tokens.
  template <typename Body>
  void ForEachPiece(size_t first, size_t tokens, const Body& body) const {
    for (size_t token = 0, length; token < tokens; token += length) {
      const size_t sample = (first + token) / plane, position = (first + token) % plane;
      length = std::min(tokens - token, plane - position);
      body(sample * features * plane + position, token, length);
    }
  }
};

// Which dimension of a tensor of this rank holds the features.
inline size_t FeatureAxis(bool channels_last, size_t rank) { return channels_last ? rank - 1 : 1; }

// Throws unless the shape has this many features where they belong.
inline Tokens TokensOf(const char* name, const Shape& shape, bool channels_last, int32_t features) {
  const size_t least_rank = channels_last ? 1 : 2;
  if (shape.size() < least_rank || shape[FeatureAxis(channels_last, shape.size())] != features) {
    const std::string wanted = std::to_string(features);
    throw OpError(std::string(name) + " has shape " + ToString(shape) + ", the plan is for " +
                  (channels_last ? "[...," + wanted + "]" : "[N," + wanted + ",...]"));
  }
  size_t plane = 1;
  if (!channels_last) {
    for (size_t i = 2; i < shape.size(); ++i) plane *= static_cast<size_t>(shape[i]);
  }
  return {channels_last, static_cast<size_t>(features), plane, ElementCount(shape) / static_cast<size_t>(features)};
}

// The shape with another number of features.
inline Shape WithFeatures(Shape shape, bool channels_last, int32_t features) {
  shape[FeatureAxis(channels_last, shape.size())] = features;
  return shape;
}

// Cuts tokens into blocks of a size that suits the kernels, and blocks into tasks. Depends on the shape and the
// instruction set alone, never on threads.
class TokenTasks {
 public:
  // `features` is the number that a block holds of every token.
  TokenTasks(size_t tokens, size_t features, size_t max_tasks)
      : tokens_(tokens),
        block_(BlockTokens(features)),
        per_task_(std::max<size_t>(1, (blocks() + max_tasks - 1) / max_tasks)) {}

  size_t count() const { return (blocks() + per_task_ - 1) / per_task_; }
  size_t block_tokens() const { return block_; }

  // Calls body(first token, TokenBlock) for each block of a task.
  template <typename Body>
  void ForEachBlock(size_t task, const Body& body) const {
    for (size_t i = task * per_task_; i < std::min(blocks(), (task + 1) * per_task_); ++i) {
      const size_t first = i * block_, size = std::min(block_, tokens_ - first);
      body(first, kernels::TokenBlock{size, (size + kVector - 1) / kVector * kVector});
    }
  }

 private:
  static constexpr size_t kVector = 16;
  static constexpr size_t kBlockFloats = 160 * 1024;  // 640 KiB: source and destination stay in L2

  static size_t BlockTokens(size_t features) {
    const size_t fitting = kBlockFloats / features / kVector * kVector;
    return std::clamp(fitting, kVector, kernels::Kernels().linear.block_tokens);
  }

  size_t blocks() const { return (tokens_ + block_ - 1) / block_; }

  size_t tokens_, block_, per_task_;
};

}  // namespace sparsyedge
