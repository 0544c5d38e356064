// Powerpropagation's gradient, for the op that returns it and the op that takes an SGD step.
#pragma once

#include <cmath>

namespace sparsyedge {

// The method's default. |w|^1.25 = |w| * |w|^(1/4), and square roots vectorise where pow does not.
inline constexpr float kRootBeta = 1.25f;

inline float FourthRoot(float magnitude) { return std::sqrt(std::sqrt(magnitude)); }

// Calls use(gradient), where gradient(dtheta, w) = dtheta * beta * |w|^(beta-1) + decay * w.
template <typename Use>
void WithPowerGradient(float beta, float decay, const Use& use) {
  if (beta == 1.0f) {
    use([decay](float dtheta, float w) { return dtheta + decay * w; });
  } else if (beta == kRootBeta) {
    use([decay](float dtheta, float w) {
      // Computes zeros too, because a load that depends on w would prevent vectorisation.
      const float gradient = dtheta * (kRootBeta * FourthRoot(std::fabs(w))) + decay * w;
      return w == 0.0f ? 0.0f : gradient;
    });
  } else {
    // For beta < 1 the slope at zero is infinite, and so is the result.
    use([beta, decay, flat_at_zero = beta > 1.0f](float dtheta, float w) {
      if (flat_at_zero && w == 0.0f) return 0.0f;
      return dtheta * (beta * std::pow(std::fabs(w), beta - 1.0f)) + decay * w;
    });
  }
}

}  // namespace sparsyedge
