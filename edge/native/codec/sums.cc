// Sums over the entries of updates, in double precision and always in the same order.
#include <cstring>

#include "codec.h"

namespace {

constexpr size_t kProducts = 7;
// Independent chains of additions, so that the processor need not wait for each.
constexpr size_t kChains = 4;

// Vectors of whatever the machine has: each lane is one chain, so the bits are those of plain additions.
typedef float Floats __attribute__((vector_size(kChains * sizeof(float))));
typedef double Doubles __attribute__((vector_size(kChains * sizeof(double))));
typedef int32_t Flags __attribute__((vector_size(kChains * sizeof(int32_t))));
typedef double Pair __attribute__((vector_size(2 * sizeof(double))));

inline Floats Load(const float* from) {
  Floats found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

inline Doubles Widen(const float* from) { return __builtin_convertvector(Load(from), Doubles); }

// Sums over a stretch of two arrays, a chain per lane; a comparison is -1 where it holds.
struct Chains {
  Doubles difference = {}, a_squares = {}, b_squares = {}, mixed = {};
  Flags a_nonzeros = {}, b_nonzeros = {}, both = {}, odd = {};

  void Add(Floats a, Floats b) {
    const Doubles x = __builtin_convertvector(a, Doubles);
    const Doubles y = __builtin_convertvector(b, Doubles);
    difference += (x - y) * (x - y);
    a_squares += x * x;
    b_squares += y * y;
    mixed += x * y;
    a_nonzeros -= a != 0;
    b_nonzeros -= b != 0;
    both -= (a != 0) & (b != 0);
    const Floats largest = {__FLT_MAX__, __FLT_MAX__, __FLT_MAX__, __FLT_MAX__};
    odd -= ~((a <= largest) & (a >= -largest));
  }
};

inline double Sum(Doubles of) { return (of[0] + of[1]) + (of[2] + of[3]); }

inline int64_t Sum(Flags of) { return int64_t{of[0]} + of[1] + of[2] + of[3]; }

// What einsum takes at a time.
constexpr int64_t kBuffer = 8192;

// The sum of (a - b)^2 over at most kBuffer entries, in the order in which einsum adds: even and odd entries apart, and
// of eight entries the last pair first.
double ChangeSquare(const float* a, const float* b, int64_t count) {
  Pair sum = {};
  const auto add = [&](Doubles changes) {
    const Doubles squares = changes * changes;
    sum += Pair{squares[2], squares[3]};
    sum += Pair{squares[0], squares[1]};
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    add(Widen(a + i + 4) - Widen(b + i + 4));
    add(Widen(a + i) - Widen(b + i));
  }
  for (; i < count; i += 2) {
    const double even = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    const double odd = i + 1 < count ? static_cast<double>(a[i + 1]) - static_cast<double>(b[i + 1]) : 0;
    sum += Pair{even * even, odd * odd};
  }
  return sum[0] + sum[1];
}

}  // namespace

int64_t se_add_entries(const uint32_t* positions, const float* values, size_t count, uint32_t first, size_t n,
                       double weight, double* sums) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t place = uint64_t{positions[i]} - first;
    if (positions[i] < first || place >= n) return kBeyondEnd;
    sums[place] += static_cast<double>(values[i]) * weight;
  }
  return 0;
}

int64_t se_missing_square(const uint32_t* positions, const float* values, size_t count, const uint32_t* kept,
                          size_t kept_count, double* sum) {
  double total = 0;
  size_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    while (next < kept_count && kept[next] < positions[i]) ++next;
    if (next < kept_count && kept[next] == positions[i]) continue;
    total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  *sum = total;
  return 0;
}

int64_t se_square_at(const float* values, size_t n, const uint32_t* positions, size_t count, double* sum) {
  double sums[kChains] = {};
  for (size_t i = 0; i < count; ++i) {
    if (positions[i] >= n) return kBeyondEnd;
    const double value = values[positions[i]];
    sums[i % kChains] += value * value;
  }
  *sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return 0;
}

int64_t se_scatter_changes(const uint32_t* positions, const float* values, const int64_t* ends, size_t rows,
                           const float* base, uint32_t first, size_t n, const int32_t* columns, size_t width,
                           double* matrix, double* squares) {
  for (size_t row = 0; row < rows; ++row) {
    double total = 0;
    double* const own = matrix + row * width;
    for (int64_t i = ends[row]; i < ends[row + 1]; ++i) {
      const uint64_t place = uint64_t{positions[i]} - first;
      if (positions[i] < first || place >= n) return kBeyondEnd;
      if (values[i] == 0) continue;
      const double change = static_cast<double>(values[i]) - static_cast<double>(base[place]);
      total += change * change;
      if (columns[place] >= 0) own[columns[place]] = change;
    }
    squares[row] += total;
  }
  return 0;
}

int64_t se_products(const float* a, const float* b, const int64_t* starts, size_t segments, double* out) {
  // Counts have 32 bits per lane.
  constexpr int64_t kMost = int64_t{1} << 30;
  int64_t odd = 0;
  for (size_t segment = 0; segment < segments; ++segment) {
    Chains chains;
    int64_t i = starts[segment];
    const int64_t stop = starts[segment + 1];
    if (stop - i > kMost) return kBadParameter;
    for (; i + static_cast<int64_t>(kChains) <= stop; i += kChains) chains.Add(Load(a + i), Load(b + i));
    // The rest belongs to the first chain; zeros change no other.
    for (; i < stop; ++i) chains.Add(Floats{a[i], 0, 0, 0}, Floats{b[i], 0, 0, 0});
    double* const found = out + segment * kProducts;
    found[0] = Sum(chains.difference);
    found[1] = Sum(chains.a_squares);
    found[2] = Sum(chains.b_squares);
    found[3] = Sum(chains.mixed);
    found[4] = static_cast<double>(Sum(chains.a_nonzeros));
    found[5] = static_cast<double>(Sum(chains.b_nonzeros));
    found[6] = static_cast<double>(Sum(chains.both));
    odd += Sum(chains.odd);
  }
  return odd;
}

int64_t se_change_squares(const float* a, const float* b, const int64_t* bounds, const int32_t* owners, size_t pieces,
                          double* sums) {
  for (size_t piece = 0; piece < pieces; ++piece) {
    const int64_t stop = bounds[piece + 1];
    double sum = 0;
    for (int64_t first = bounds[piece]; first < stop; first += kBuffer) {
      sum += ChangeSquare(a + first, b + first, stop - first < kBuffer ? stop - first : kBuffer);
    }
    sums[owners[piece]] += sum;
  }
  return 0;
}
