// Holds the functions of one instruction set's header against scalar.h; test_simd.py compiles it once per set.
//
// Prints the names that disagree, one per line, and exits with their number. Values are small integers, whose sums and
// products are exact in any order, plus signed zeros, NaN and infinity where a function compares.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "simd/scalar.h"
#include "simd/simd.h"

namespace {

namespace isa = sparsyedge::kernels::SPARSYEDGE_ISA;
namespace oracle = sparsyedge::kernels::scalar;
using sparsyedge::kernels::CountLanes;
using sparsyedge::kernels::kLanes;
using sparsyedge::kernels::LaneMask;

int failures = 0;

template <typename T>
void Same(const char* name, const T* found, const T* wanted, size_t count) {
  if (std::memcmp(found, wanted, count * sizeof(T)) == 0) return;
  std::printf("%s\n", name);
  ++failures;
}

uint32_t Random() {
  static uint32_t state = 1;
  state = state * 1664525 + 1013904223;
  return state >> 8;
}

void FillSmall(float* p, int count) {
  for (int i = 0; i < count; ++i) p[i] = static_cast<float>(static_cast<int>(Random() % 201) - 100);
}

// ---------------------------------------------------------------------------------------------------------------------

template <typename Reg>
void CheckRegisters() {
  constexpr int width = Reg::kWidth;
  float in[width * width], found[width], wanted[width];
  FillSmall(in, width * width);

  Reg::SumEach(in).Store(found);
  for (int i = 0; i < width; ++i) {
    wanted[i] = 0.0f;
    for (int lane = 0; lane < width; ++lane) wanted[i] += in[width * i + lane];
  }
  Same("SumEach", found, wanted, width);

  const Reg a = Reg::Load(in), b = Reg::LoadOnce(in + width), c = Reg::Set(7.0f);
  Fma(a, b, c).Store(found);
  for (int i = 0; i < width; ++i) wanted[i] = in[i] * in[width + i] + 7.0f;
  Same("Fma", found, wanted, width);

  isa::WillRead();
  FmaInOrder(Reg::LoadInOrder(in, 0), Reg::LoadInOrder(in, width), c).Store(found);
  Same("FmaInOrder, LoadInOrder", found, wanted, width);
  MulInOrder(a, b).Store(found);
  for (int i = 0; i < width; ++i) wanted[i] = in[i] * in[width + i];
  Same("MulInOrder", found, wanted, width);

  const auto weights = isa::Weights<3>::Load(in);
  Reg sum = c;
  weights.Add(0, a, sum);
  weights.Add(1, a, sum);
  weights.Add(2, a, sum);
  sum.Store(found);
  for (int i = 0; i < width; ++i) wanted[i] = in[i] * (in[0] + in[1] + in[2]) + 7.0f;
  Same("Weights", found, wanted, width);

  (a + b + Reg::Zero()).Store(found);
  for (int i = 0; i < width; ++i) wanted[i] = in[i] + in[width + i];
  Same("Reg +", found, wanted, width);

  Reg eight[8];
  for (int i = 0; i < 8; ++i) eight[i] = Reg::Load(in + width * i);
  float totals[8], sums[8] = {};
  StoreTotals(eight, totals);
  for (int i = 0; i < 8 * width; ++i) sums[i / width] += in[i];
  Same("StoreTotals", totals, sums, 8);

  constexpr size_t pitch = width + 3;  // not the side of the square, and not aligned
  float square[width * pitch], turned[width * pitch] = {}, expected[width * pitch] = {};
  FillSmall(square, width * pitch);
  isa::Transpose(square, pitch, turned, pitch);
  for (size_t i = 0; i < width; ++i) {
    for (size_t j = 0; j < width; ++j) expected[j * pitch + i] = square[i * pitch + j];
  }
  Same("Transpose", turned, expected, width * pitch);
}

// Compares what compute(Vec{}) returns for the Vec of both headers.
template <typename Compute>
void SameLanes(const char* name, const Compute& compute) {
  float found[kLanes], wanted[kLanes];
  compute(isa::Vec{}).Store(found);
  compute(oracle::Vec{}).Store(wanted);
  Same(name, found, wanted, kLanes);
}

void CheckTranspose() {
  float in[kLanes][kLanes], found[kLanes][kLanes], wanted[kLanes][kLanes];
  const float* from[kLanes];
  float *to_found[kLanes], *to_wanted[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    FillSmall(in[i], kLanes);
    from[i] = in[i];
    to_found[i] = found[i];
    to_wanted[i] = wanted[i];
  }
  isa::Transpose(from, to_found);
  oracle::Transpose(from, to_wanted);
  Same("Transpose", &found[0][0], &wanted[0][0], kLanes * kLanes);
}

void CheckPosition(LaneMask mask, const float (&x)[kLanes], const float (&y)[kLanes]) {
  SameLanes("Vec +", [&](auto v) { return v.Load(x) + v.Load(y) + v.Zero(); });
  SameLanes("Vec -", [&](auto v) { return v.Load(x) - v.Set(3.0f); });
  SameLanes("Vec *", [&](auto v) { return v.Load(x) * v.Load(y); });
  SameLanes("Abs", [&](auto v) { return Abs(v.Load(x)); });
  SameLanes("Min", [&](auto v) { return Min(v.Set(3.0f), v.Load(x)); });
  SameLanes("KeepLanes", [&](auto v) { return KeepLanes(mask, v.Load(x)); });

  const LaneMask positive[2] = {PositiveOrNan(isa::Vec::Load(x)), PositiveOrNan(oracle::Vec::Load(x))};
  Same("PositiveOrNan", &positive[0], &positive[1], 1);
  for (const uint32_t key : {0u, 0x3f800000u, 0x42000000u, 0x7f800000u, 0x7fffffffu}) {
    const LaneMask above[2] = {MagnitudeAbove(isa::Vec::Load(x), key), MagnitudeAbove(oracle::Vec::Load(x), key)};
    Same("MagnitudeAbove", &above[0], &above[1], 1);
  }

  float found[kLanes] = {}, wanted[kLanes] = {};
  Pack(mask, isa::Vec::Load(x), found);
  Pack(mask, oracle::Vec::Load(x), wanted);
  Same("Pack", found, wanted, static_cast<size_t>(CountLanes(mask)));
  isa::ExpandLoad(mask, x).Store(found);
  oracle::ExpandLoad(mask, x).Store(wanted);
  Same("ExpandLoad", found, wanted, kLanes);

  const float fused[2] = {isa::Fma(x[0], y[0], y[1]), oracle::Fma(x[0], y[0], y[1])};
  if (!std::isnan(fused[1])) Same("Fma of floats", &fused[0], &fused[1], 1);

  double sums[kLanes], wide[kLanes], expected[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = 0.5 * i;
  using isa::DoubleVec;
  (DoubleVec::Load(sums) + DoubleVec::Load(x) * isa::ToDouble(isa::Vec::Load(y))).Store(wide);
  for (int i = 0; i < kLanes; ++i) expected[i] = sums[i] + static_cast<double>(x[i]) * y[i];
  Same("DoubleVec", wide, expected, kLanes);
}

}  // namespace

int main() {
  CheckRegisters<isa::Reg>();
  CheckTranspose();
  for (LaneMask mask = 0; mask < 1u << kLanes; ++mask) {
    float x[kLanes], y[kLanes];
    FillSmall(x, kLanes);
    FillSmall(y, kLanes);
    if (mask % 2 != 0) {
      const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN};
      for (float& lane : x) lane = Random() % 2 != 0 ? special[Random() % 5] : lane;
    }
    CheckPosition(mask, x, y);
    if (failures > 0) break;
  }
  return failures;
}
