// The gradient of Powerpropagation, shared by the op that returns it and the op that takes an SGD step with it.
#pragma once

#include <cmath>

namespace sparsyedge {

// The method's default. |w|^1.25 = |w| * |w|^(1/4), and two square roots run at vector speed where pow does not.
inline constexpr float kRootBeta = 1.25f;

inline float FourthRoot(float magnitude) { return std::sqrt(std::sqrt(magnitude)); }

// Calls use(gradient) once, with the function (dtheta, w) -> dtheta * beta * |w|^(beta-1) + decay * w of this beta.
template <typename Use>
void WithPowerGradient(float beta, float decay, const Use& use) {
  if (beta == 1.0f) {
    use([decay](float dtheta, float w) { return dtheta + decay * w; });
  } else if (beta == kRootBeta) {
    use([decay](float dtheta, float w) {
      // Computed for zeros as well, since a load that depends on w would keep the loop out of vector code.
      const float gradient = dtheta * (kRootBeta * FourthRoot(std::fabs(w))) + decay * w;
      return w == 0.0f ? 0.0f : gradient;
    });
  } else {
    // Below 1 the slope at zero is infinite, and is left to say so.
    use([beta, decay, flat_at_zero = beta > 1.0f](float dtheta, float w) {
      if (flat_at_zero && w == 0.0f) return 0.0f;
      return dtheta * (beta * std::pow(std::fabs(w), beta - 1.0f)) + decay * w;
    });
  }
}

}  // namespace sparsyedge
