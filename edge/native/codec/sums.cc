// Sums over the entries of updates, in double precision and always in the same order.
#include <cmath>

#include "codec.h"

namespace {

constexpr size_t kProducts = 7;
// Independent chains of additions, so that the processor need not wait for each.
constexpr size_t kChains = 4;

struct Chains {
  double of[kProducts][kChains] = {};

  void Add(size_t chain, double a, double b) {
    const double difference = a - b;
    of[0][chain] += difference * difference;
    of[1][chain] += a * a;
    of[2][chain] += b * b;
    of[3][chain] += a * b;
    of[4][chain] += a != 0 ? 1 : 0;
    of[5][chain] += b != 0 ? 1 : 0;
    of[6][chain] += a != 0 && b != 0 ? 1 : 0;
  }
};

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

int64_t se_scatter_changes(const uint32_t* positions, const float* values, size_t count, const float* base,
                           uint32_t first, size_t n, const int32_t* columns, double* row, double* square) {
  double total = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t place = uint64_t{positions[i]} - first;
    if (positions[i] < first || place >= n) return kBeyondEnd;
    if (values[i] == 0) continue;
    const double change = static_cast<double>(values[i]) - static_cast<double>(base[place]);
    total += change * change;
    if (columns[place] >= 0) row[columns[place]] = change;
  }
  *square += total;
  return 0;
}

int64_t se_products(const float* a, const float* b, const int64_t* starts, size_t segments, double* out) {
  int64_t odd = 0;
  for (size_t segment = 0; segment < segments; ++segment) {
    Chains chains;
    int64_t i = starts[segment];
    const int64_t stop = starts[segment + 1];
    for (; i + static_cast<int64_t>(kChains) <= stop; i += kChains) {
      for (size_t chain = 0; chain < kChains; ++chain) {
        chains.Add(chain, a[i + chain], b[i + chain]);
        odd += !(std::fabs(a[i + chain]) <= __FLT_MAX__);
      }
    }
    for (; i < stop; ++i) {
      chains.Add(0, a[i], b[i]);
      odd += !(std::fabs(a[i]) <= __FLT_MAX__);
    }
    for (size_t product = 0; product < kProducts; ++product) {
      const double* of = chains.of[product];
      out[segment * kProducts + product] = (of[0] + of[1]) + (of[2] + of[3]);
    }
  }
  return odd;
}
