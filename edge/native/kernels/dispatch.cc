#include "dispatch.h"

#include <cstdlib>
#include <string>

#include "../op.h"

namespace sparsyedge::kernels {

namespace scalar {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace neon {
extern const KernelTable kTable;
}

namespace {

// What this CPU can run, best first.
std::vector<const KernelTable*> Available() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    tables.push_back(&avx512::kTable);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&avx2::kTable);
#elif defined(__aarch64__)
  tables.push_back(&neon::kTable);  // part of every AArch64
#endif
  tables.push_back(&scalar::kTable);
  return tables;
}

const KernelTable& Choose() {
  const std::vector<const KernelTable*> tables = Available();
  const char* forced = std::getenv("SPARSYEDGE_FORCE_ISA");
  if (forced == nullptr || *forced == '\0') return *tables.front();
  std::string names;
  for (const KernelTable* table : tables) {
    if (std::string(forced) == table->isa) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  throw OpError(std::string("SPARSYEDGE_FORCE_ISA is ") + forced + ", this CPU has " + names);
}

}  // namespace

const KernelTable& Kernels() {
  static const KernelTable& table = Choose();  // a throw leaves it unset, so the next call throws again
  return table;
}

}  // namespace sparsyedge::kernels
