// Feeds altered input to every function of the wire codec that reads wire data. `make fuzz` builds it with the address
// and undefined-behaviour sanitizers and runs it.
//
//   fuzz_codec [inputs] [first] [s]  input i depends on i alone: `fuzz_codec 1 4711` repeats number 4711; ends after s
//                                    seconds at the latest
//   fuzz_codec_guided [options]      the same under libFuzzer, whose bytes make the choices, guided by coverage
//
// Each input encodes a random tensor and is then altered: bytes flipped, set, cut or added, and the numbers a header
// would claim (parameter, count, size) changed. A decoder may refuse it or decode it, and must
//   - touch nothing outside its buffers: each is an allocation of exactly its size,
//   - allocate nothing: allocations inside a call are counted,
//   - return: a watchdog ends the run after 20 s without progress,
//   - produce increasing positions inside the tensor, and the original if nothing was altered.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include "codec.h"

// From the sanitizer's runtime; not every compiler ships its header, <sanitizer/allocator_interface.h>.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));

namespace {

uint64_t current_input = 0;
// Of this thread alone: libFuzzer has threads of its own, which allocate when they like.
thread_local bool inside_codec = false;
size_t allocations_inside = 0;

void CountAllocation(const volatile void*, size_t) { allocations_inside += inside_codec; }
void IgnoreRelease(const volatile void*) {}

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "input %llu: %s\n", static_cast<unsigned long long>(current_input), what);
  std::abort();
}

void Require(bool condition, const char* what) {
  if (!condition) Fail(what);
}

// An allocation of exactly its size, so the sanitizer catches the first byte past it.
template <typename T>
class Exact {
 public:
  explicit Exact(size_t count) : count_(count), data_(static_cast<T*>(std::malloc(count * sizeof(T) + (count == 0)))) {
    if (count > 0) std::memset(data_.get(), 0xA5, count * sizeof(T));
  }
  explicit Exact(const std::vector<T>& from) : Exact(from.size()) {
    if (count_ > 0) std::memcpy(data_.get(), from.data(), count_ * sizeof(T));
  }
  T* data() const { return data_.get(); }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Release {
    void operator()(T* data) const { std::free(data); }
  };
  size_t count_;
  std::unique_ptr<T, Release> data_;
};

// The choices that make an input: bytes from a tape while it lasts, then splitmix64, the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  Random(const uint8_t* tape, size_t size) : state_(size), tape_(tape), left_(size) {}
  uint64_t Next() { return left_ > 0 ? FromTape(8) : Mixed(); }
  uint64_t Below(uint64_t bound) {
    if (bound == 0) return 0;
    return (left_ > 0 ? FromTape(bound <= 1u << 8 ? 1 : bound <= 1u << 16 ? 2 : 8) : Mixed()) % bound;
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  uint64_t Mixed() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t FromTape(size_t bytes) {
    uint64_t value = 0;
    for (; bytes > 0 && left_ > 0; --bytes, --left_) value = value << 8 | *tape_++;
    state_ = state_ * 31 + value;
    return value;
  }
  uint64_t state_;
  const uint8_t* tape_ = nullptr;
  size_t left_ = 0;
};

template <typename Function, typename... Arguments>
int64_t Call(Function function, Arguments... arguments) {
  inside_codec = true;
  const int64_t result = function(arguments...);
  inside_codec = false;
  return result;
}

// ---- inputs ---------------------------------------------------------------------------------------------------------

std::vector<uint32_t> RandomTensor(Random& random) {
  static constexpr uint32_t kOdd[] = {0x80000000u, 0x7FC00001u, 0xFF800000u, 1u, 0xFFFFFFFFu};
  std::vector<uint32_t> bits(random.OneIn(50) ? random.Below(20000) : random.Below(400));
  const uint64_t density = 1 + random.Below(100);
  for (uint32_t& value : bits) {
    if (random.Below(100) >= density) continue;
    value = random.OneIn(20) ? kOdd[random.Below(5)] : 0x3C000000u + static_cast<uint32_t>(random.Below(1u << 25));
  }
  return bits;
}

struct Nonzeros {
  std::vector<uint32_t> positions, values;
};

Nonzeros NonzerosOf(const std::vector<uint32_t>& tensor) {
  const Exact<uint32_t> bits(tensor);
  const auto count = static_cast<size_t>(Call(se_count_nonzero, bits.data(), bits.size(), 0xFFFFFFFFu));
  const Exact<uint32_t> positions(count), values(count);
  const auto scan = [&](size_t room) {
    return Call(se_nonzero, bits.data(), bits.size(), 0xFFFFFFFFu, positions.data(), values.data(), room);
  };
  if (count > 0) Require(scan(count - 1) == kNoRoom, "scan took more room than there is");
  Require(scan(count) == static_cast<int64_t>(count), "scan disagrees with the count");
  return {{positions.data(), positions.data() + count}, {values.data(), values.data() + count}};
}

std::vector<uint8_t> RiceCodes(const std::vector<uint32_t>& list, uint32_t* parameter) {
  const Exact<uint32_t> positions(list);
  const int64_t bytes = Call(se_rice_plan, positions.data(), positions.size(), parameter);
  const Exact<uint8_t> codes(static_cast<size_t>(bytes));
  Require(Call(se_rice_encode, positions.data(), positions.size(), *parameter, codes.data(), codes.size()) == bytes,
          "codes have not the planned length");
  return {codes.data(), codes.data() + bytes};
}

bool Alter(Random& random, std::vector<uint8_t>& bytes) {
  if (random.OneIn(8)) return false;
  for (uint64_t changes = 1 + random.Below(4); changes > 0; --changes) {
    const uint64_t kind = random.Below(6);
    if (kind == 0) bytes.resize(random.Below(bytes.size() + 1));
    if (kind == 1) bytes.insert(bytes.end(), random.Below(20), static_cast<uint8_t>(random.Next()));
    if (kind == 2) bytes.assign(random.Below(64), random.OneIn(2) ? 0 : 0xFF);
    if (bytes.empty()) continue;
    const size_t place = random.Below(bytes.size());
    if (kind == 3) bytes[place] = static_cast<uint8_t>(random.Next());
    if (kind == 4) bytes[place] ^= static_cast<uint8_t>(1u << random.Below(8));
    if (kind == 5) std::memset(bytes.data() + place, 0, random.Below(bytes.size() - place + 1));
  }
  return true;
}

// What a header may claim instead of an honest number.
bool Claim(Random& random, uint64_t* number, uint64_t highest) {
  if (!random.OneIn(4)) return false;
  const uint64_t before = *number;
  *number = random.OneIn(2) ? random.Below(highest + 2) : *number + random.Below(3) - 1;
  if (*number > highest + 1) *number = highest;
  return *number != before;
}

void RequireIncreasing(const Exact<uint32_t>& positions, size_t size) {
  uint64_t next = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    Require(positions[i] >= next && positions[i] < size, "positions do not increase inside the tensor");
    next = uint64_t{positions[i]} + 1;
  }
}

void RequireSame(const Exact<uint32_t>& found, const std::vector<uint32_t>& expected, const char* what) {
  Require(found.size() == expected.size(), what);
  for (size_t i = 0; i < expected.size(); ++i) Require(found[i] == expected[i], what);
}

// ---- what is tried --------------------------------------------------------------------------------------------------

// Reads a mask in pieces and expands a tensor in place, with the mask's count and with a wrong one.
void TryExpand(Random& random, const Exact<uint32_t>& mask, size_t size, const Exact<uint32_t>& kept) {
  const Exact<uint32_t> piece(1 + random.Below(50));
  size_t next = 0;
  size_t seen = 0;
  while (const auto found = Call(se_mask_positions, mask.data(), size, &next, piece.data(), piece.size())) {
    for (int64_t i = 0; i < found; ++i) {
      Require(seen < kept.size() && piece[static_cast<size_t>(i)] == kept[seen++], "a mask keeps something else");
    }
  }
  Require(seen == kept.size(), "a mask keeps fewer entries than it should");

  const Exact<uint32_t> bits(size), base(size);
  for (size_t i = 0; i < size; ++i) base[i] = static_cast<uint32_t>(random.Next());
  next = seen = 0;
  while (const auto found = Call(se_mask_entries, mask.data(), base.data(), size, &next, piece.data(), piece.size())) {
    for (int64_t i = 0; i < found; ++i) {
      Require(piece[static_cast<size_t>(i)] == base[kept[seen++]], "a mask gives another entry");
    }
  }
  Require(seen == kept.size(), "a mask gives fewer entries than it keeps");
  uint64_t count = kept.size();
  const bool altered = Claim(random, &count, size);
  if (size > 0) std::memset(bits.data(), 0, size * sizeof(uint32_t));
  const size_t words = count < size ? count : size;
  for (size_t i = size - words; i < size; ++i) bits[i] = static_cast<uint32_t>(random.Next());
  const auto coding = static_cast<uint32_t>(random.Below(4));  // 3 is not a coding
  const bool based = random.OneIn(2);
  const uint32_t* const near = based ? base.data() : nullptr;
  const int64_t status = Call(se_expand, mask.data(), size, count, near, coding, 0.5f, bits.data());
  const bool possible = !altered && (coding < kInt8 || (coding == kInt8 && based));
  Require((status == 0) == possible, "an impossible tensor was expanded, or a possible one was not");
  if (status != 0) return;
  size_t matched = 0;
  for (size_t i = 0; i < size; ++i) {
    if (matched < kept.size() && kept[matched] == i) {
      ++matched;
    } else {
      Require(bits[i] == 0, "an entry that is not kept is not zero");
    }
  }
}

// A full mask: codes to positions, to their complement, to values gathered, to a mask and a tensor.
void TryMask(Random& random) {
  const std::vector<uint32_t> tensor = RandomTensor(random);
  const Nonzeros honest = NonzerosOf(tensor);
  uint32_t parameter = 0;
  std::vector<uint8_t> codes = RiceCodes(honest.positions, &parameter);
  uint64_t size = tensor.size(), count = honest.positions.size(), claimed = parameter;
  bool altered = Alter(random, codes);
  altered |= Claim(random, &size, 30000);
  altered |= Claim(random, &count, size);
  altered |= Claim(random, &claimed, 40);

  const Exact<uint8_t> in(codes);
  const Exact<uint32_t> positions(count);
  const int64_t used =
      Call(se_rice_decode, in.data(), in.size(), static_cast<uint32_t>(claimed), size, 0u, positions.data(), count);
  if (used < 0) {
    Require(altered, "honest codes were refused");
    return;
  }
  Require(static_cast<size_t>(used) <= in.size(), "more bytes were used than there are");
  RequireIncreasing(positions, size);
  if (!altered) RequireSame(positions, honest.positions, "honest codes decode to something else");

  const Exact<uint32_t> others(size - count);
  Require(Call(se_complement, positions.data(), count, size, 0u, others.data(), others.size()) ==
              static_cast<int64_t>(others.size()),
          "complement has another size");
  RequireIncreasing(others, size);

  // The tensor may be smaller than the one the positions are from.
  const Exact<uint32_t> bits(tensor);
  const Exact<uint32_t> values(count);
  const bool fits = count == 0 || positions[count - 1] < bits.size();
  const int64_t gathered = Call(se_gather, bits.data(), bits.size(), positions.data(), count, values.data());
  Require((gathered >= 0) == fits, "gather went outside");

  const bool zeros = random.OneIn(2);
  const Exact<uint32_t> mask((size + 31) / 32);
  Require(
      Call(se_rice_mask, in.data(), in.size(), static_cast<uint32_t>(claimed), size, count, zeros, mask.data()) == used,
      "a mask reads other bytes than a list");
  TryExpand(random, mask, size, zeros ? others : positions);
}

// A mask over a base: codes to ranks, to the entries that stay.
void TryNested(Random& random) {
  const std::vector<uint32_t> tensor = RandomTensor(random);
  const Nonzeros held = NonzerosOf(tensor);
  std::vector<uint32_t> stays;
  const uint64_t share = random.Below(101);
  for (const uint32_t position : held.positions) {
    if (random.Below(100) < share) stays.push_back(position);
  }
  const Exact<uint32_t> base(held.positions), base_values(held.values), order(held.positions.size());
  Call(se_magnitude_order, base_values.data(), base_values.size(), order.data());
  std::vector<uint8_t> codes;
  uint32_t parameter = 0;
  {
    const Exact<uint8_t> flags(base.size());
    const Exact<uint32_t> kept(stays), values(stays.size()), ranks(base.size() - stays.size());
    Require(Call(se_dropped_ranks, base.data(), base_values.data(), base.size(), order.data(), kept.data(), kept.size(),
                 flags.data(), values.data(), ranks.data(), ranks.size()) == static_cast<int64_t>(ranks.size()),
            "an honest subset is not nested");
    codes = RiceCodes({ranks.data(), ranks.data() + ranks.size()}, &parameter);
  }
  uint64_t count = base.size() - stays.size();
  bool altered = Alter(random, codes);
  altered |= Claim(random, &count, base.size());
  if (count > base.size()) return;

  const Exact<uint8_t> in(codes);
  const Exact<uint32_t> ranks(count), whole(tensor), mask((tensor.size() + 31) / 32);
  const int64_t used = Call(se_rice_decode, in.data(), in.size(), parameter, base.size(), 0u, ranks.data(), count);
  if (used < 0) {
    Require(altered, "honest ranks were refused");
    return;
  }
  const auto keep = [&] {
    Require(Call(se_nonzero_mask, whole.data(), whole.size(), mask.data()) == static_cast<int64_t>(base.size()),
            "a mask has not the base's non-zeros");
    return Call(se_drop, whole.data(), whole.size(), ranks.data(), ranks.size(), mask.data());
  };
  Require(keep() == static_cast<int64_t>(base.size() - count), "another number stays than was said");
  const Exact<uint32_t> kept(base.size() - count);
  size_t next = 0;
  Call(se_mask_positions, mask.data(), whole.size(), &next, kept.data(), kept.size());
  RequireIncreasing(kept, tensor.size());
  if (!altered) RequireSame(kept, stays, "honest ranks decode to something else");
  TryExpand(random, mask, tensor.size(), kept);
  const Exact<uint8_t> flags(base.size());
  const Exact<uint32_t> rest(kept.size()), rest_values(kept.size());
  double dropped = 0;
  Require(
      Call(se_remaining, base.data(), base_values.data(), base.size(), order.data(), ranks.data(), ranks.size(),
           flags.data(), rest.data(), rest_values.data(), rest.size(), &dropped) == static_cast<int64_t>(rest.size()),
      "another number remains than the mask keeps");
  RequireSame(rest, {kept.data(), kept.data() + kept.size()}, "other entries remain than the mask keeps");

  // Ranks that no decoder produces: one outside, or one twice.
  if (ranks.size() == 0) return;
  const uint64_t other = random.OneIn(2) ? random.Next() : random.Below(base.size());
  ranks[random.Below(ranks.size())] = static_cast<uint32_t>(other);
  const int64_t left = keep();
  Require(left == kBeyondEnd || left == static_cast<int64_t>(kept.size()), "a false rank was believed");
}

// Any bytes are values: lossless ones must survive, lossy ones stay in range.
void TryValues(Random& random) {
  const size_t count = random.Below(300);
  const Exact<uint32_t> bits(count), base(count), restored(count);
  for (size_t i = 0; i < count; ++i) {
    bits[i] = static_cast<uint32_t>(random.Next());
    base[i] = static_cast<uint32_t>(random.OneIn(2) ? bits[i] + random.Below(64) : random.Next());
  }
  const auto expand = [&](const uint32_t* near, uint32_t coding, float scale) {
    return Call(se_expand, static_cast<const uint32_t*>(nullptr), count, count, near, coding, scale, restored.data());
  };
  Call(se_difference32, bits.data(), base.data(), count, restored.data());
  Require(expand(base.data(), kLossless, 0.0f) == 0, "a difference was refused");
  Require(count == 0 || std::memcmp(bits.data(), restored.data(), count * 4) == 0, "a difference was not undone");

  const Exact<uint16_t> halves(count), near(count), coded16(count);
  Call(se_bf16_round, bits.data(), count, halves.data());
  Call(se_bf16_round, base.data(), count, near.data());
  Call(se_difference16, halves.data(), near.data(), count, coded16.data());
  for (size_t i = 0; i < count; ++i) restored[i] = coded16[i];
  Require(expand(base.data(), kBf16, 0.0f) == 0, "a half was refused");
  for (size_t i = 0; i < count; ++i) Require(restored[i] >> 16 == halves[i], "a half was not restored");

  const size_t width = size_t{1} << random.Below(4);  // 8 is not a width
  const Exact<uint8_t> planes(count * 4);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(bits.data());
  const int64_t split = Call(se_split_planes, bytes, count, width, planes.data());
  Require((split == 0) == (width <= 4), "planes of an impossible width");
  for (size_t byte = 0; width == 4 && byte < 5; ++byte) {
    const size_t plane = byte < 4 ? byte : 0;
    const int64_t put = Call(se_put_plane, planes.data() + plane * count, count, byte, restored.data());
    Require((put == 0) == (byte < 4), "a fifth byte of a word");
  }
  Require(width != 4 || count == 0 || std::memcmp(bits.data(), restored.data(), count * 4) == 0, "planes lost a byte");
  const int64_t joined = Call(se_join_planes, planes.data(), count, width, restored.data());
  Require((joined == 0) == (width <= 4), "words of an impossible width");
  Require(width != 4 || count == 0 || std::memcmp(bits.data(), restored.data(), count * 4) == 0, "words lost a byte");

  const auto* const floats = reinterpret_cast<const float*>(bits.data());
  const auto* const base_floats = reinterpret_cast<const float*>(base.data());
  const Exact<int8_t> steps(count);
  float scale = 0.0f;
  const int64_t status = Call(se_int8_encode, floats, base_floats, count, steps.data(), &scale);
  Require(status == 0 || status == kNotFinite, "steps ended in an unknown way");
  for (size_t i = 0; i < count; ++i) restored[i] = static_cast<uint32_t>(random.Next());
  const auto any = static_cast<uint32_t>(random.Next());
  std::memcpy(&scale, &any, sizeof scale);
  const int64_t moved = expand(base.data(), kInt8, scale);
  Require(moved == 0 || moved == kNotFinite, "a move ended in an unknown way");
}

// Entries of an update: sums over any stretch stay inside it, whatever the positions.
void TrySums(Random& random) {
  const Nonzeros held = NonzerosOf(RandomTensor(random));
  const size_t size = held.positions.empty() ? 0 : held.positions.back() + size_t{1};
  std::vector<uint32_t> list = held.positions;
  const bool altered = !list.empty() && random.OneIn(2);
  if (altered) list[random.Below(list.size())] = static_cast<uint32_t>(random.Next());
  const auto first = static_cast<uint32_t>(random.OneIn(2) ? 0 : random.Below(size + 2));
  const size_t n = random.OneIn(2) ? size : random.Below(size + 2);
  bool fits = true;
  for (const uint32_t position : list) fits &= position >= first && position - first < n;

  const Exact<uint32_t> positions(list), bits(held.values), base_bits(n);
  const auto* const values = reinterpret_cast<const float*>(bits.data());
  const auto* const base = reinterpret_cast<const float*>(base_bits.data());
  const Exact<double> sums(n);
  const int64_t added = Call(se_add_entries, positions.data(), values, positions.size(), first, n, 0.5, sums.data());
  Require(fits ? added == 0 : added == kBeyondEnd, "entries were added outside, or refused inside");

  const Exact<int32_t> columns(n);
  int32_t used = 0;
  for (size_t i = 0; i < n; ++i) columns[i] = random.OneIn(2) ? used++ : -1;
  const auto width = static_cast<size_t>(used);
  const Exact<double> rows(2 * width);
  double changed[] = {0, 0};
  const auto count = static_cast<int64_t>(list.size());
  const int64_t ends[] = {0, static_cast<int64_t>(random.Below(list.size() + 1)), count};
  const int64_t scattered = Call(se_scatter_changes, positions.data(), values, ends, size_t{2}, base, first, n,
                                 columns.data(), width, rows.data(), changed);
  Require(scattered == added, "changes were scattered outside, or refused inside");

  const Exact<uint32_t> kept(NonzerosOf(RandomTensor(random)).positions);
  double missing = 0;
  Call(se_missing_square, positions.data(), values, positions.size(), kept.data(), kept.size(), &missing);

  double squares = 0;
  const int64_t squared = Call(se_square_at, base, n, positions.data(), positions.size(), &squares);
  bool is_inside = true;
  for (const uint32_t position : list) is_inside &= position < n;
  Require(is_inside ? squared == 0 : squared == kBeyondEnd, "squares were taken outside, or refused inside");

  const size_t middle = random.Below(n + 1);
  const int64_t starts[] = {0, static_cast<int64_t>(middle), static_cast<int64_t>(n)};
  const Exact<double> products(14);
  const int64_t odd = Call(se_products, base, base, starts, size_t{2}, products.data());
  Require(odd >= 0 && odd <= static_cast<int64_t>(n), "more values are odd than there are");
  const int32_t owners[] = {1, 0};
  const Exact<double> changes(2);
  changes[0] = changes[1] = 0;
  Call(se_change_squares, base, base, starts, owners, size_t{2}, changes.data());
}

void TryOne(Random& random) {
  switch (random.Below(9)) {
    case 8: TrySums(random); break;
    case 0: TryValues(random); break;
    case 1:
    case 2:
    case 3: TryNested(random); break;
    default: TryMask(random); break;
  }
  Require(allocations_inside == 0, "the codec allocated memory");
}

}  // namespace

#ifdef FUZZ_GUIDED

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  __sanitizer_install_malloc_and_free_hooks(CountAllocation, IgnoreRelease);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Random random(data, size);
  TryOne(random);
  return 0;
}

#else

int main(int argc, char** argv) {
  const uint64_t inputs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const std::time_t end = argc > 3 ? std::time(nullptr) + std::atol(argv[3]) : 0;
  __sanitizer_install_malloc_and_free_hooks(CountAllocation, IgnoreRelease);
  uint64_t i = 0;
  for (; i < inputs; ++i) {
    if (i % 1024 == 0) {
      if (end && std::time(nullptr) >= end) break;
      alarm(20);
    }
    current_input = first + i;
    Random random(current_input);
    TryOne(random);
  }
  std::printf("%llu inputs: none crashed, hung, left its buffers or allocated\n", static_cast<unsigned long long>(i));
  return 0;
}

#endif
