// Reads hyperparameters, which are float inputs of one element, and checks their values.
#pragma once

#include <cmath>

#include "../op.h"

namespace sparsyedge {

inline float ReadBeta(const Context& context, size_t input) {
  const float beta = context.Scalar(input);
  if (!std::isfinite(beta) || beta <= 0.0f) {
    throw OpError("beta is " + ToString(beta) + ", must be finite and above 0");
  }
  return beta;
}

inline float ReadWeightDecay(const Context& context, size_t input) {
  const float weight_decay = context.Scalar(input);
  if (!std::isfinite(weight_decay) || weight_decay < 0.0f) {
    throw OpError("weight_decay is " + ToString(weight_decay) + ", must be finite and at least 0");
  }
  return weight_decay;
}

inline float ReadLearningRate(const Context& context, size_t input) {
  const float lr = context.Scalar(input);
  if (!std::isfinite(lr) || lr < 0.0f) {
    throw OpError("lr is " + ToString(lr) + ", must be finite and at least 0");
  }
  return lr;
}

}  // namespace sparsyedge
