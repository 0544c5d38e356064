// Which entries of a tensor are kept: scanning, Golomb-Rice coding of gaps, and subsets of a base's non-zeros.
#include <cstring>

#include "bits.h"
#include "codec.h"

namespace {

constexpr uint32_t kMaxParameter = 31;

// ---- scanning -------------------------------------------------------------------------------------------------------

constexpr size_t kLanes = 32;

struct Weights {
  uint32_t of[kLanes];
  constexpr Weights() : of() {
    for (size_t i = 0; i < kLanes; ++i) of[i] = uint32_t{1} << i;
  }
};
constexpr Weights kWeights;

// Sets one bit per lane with a significant bit. Compilers vectorise a sum over constants on every architecture, but not
// shifts by the lane number.
inline uint32_t NonzeroLanes(const uint32_t* bits, uint32_t significant) {
  uint32_t lanes = 0;
  for (size_t i = 0; i < kLanes; ++i) lanes |= (bits[i] & significant) != 0 ? kWeights.of[i] : 0;
  return lanes;
}

// ---- bits -----------------------------------------------------------------------------------------------------------

// Writes bits into a buffer of known size, from the lowest bit of each byte up.
class BitWriter {
 public:
  BitWriter(uint8_t* out, size_t room) : begin_(out), next_(out), end_(out + room) {}

  // At most 32 bits; those above `count` must be zero.
  bool Write(uint64_t bits, unsigned count) {
    pending_ |= bits << held_;
    held_ += count;
    while (held_ >= 8) {
      if (next_ == end_) return false;
      *next_++ = static_cast<uint8_t>(pending_);
      pending_ >>= 8;
      held_ -= 8;
    }
    return true;
  }

  bool WriteZeros(uint64_t count) {
    for (; count > 32; count -= 32) {
      if (!Write(0, 32)) return false;
    }
    return Write(0, static_cast<unsigned>(count));
  }

  // Fills the last byte with zeros.
  bool Finish() { return held_ == 0 || Write(0, 8 - held_); }

  int64_t Bytes() const { return next_ - begin_; }

 private:
  uint8_t* const begin_;
  uint8_t* next_;
  uint8_t* const end_;
  uint64_t pending_ = 0;
  unsigned held_ = 0;
};

// Reads what BitWriter wrote, and never past the end.
class BitReader {
 public:
  // Begins at the bit `at`, which the input has, or at its end.
  BitReader(const uint8_t* in, size_t bytes, uint64_t at) : begin_(in), next_(in + at / 8), end_(in + bytes) {
    if (at % 8 != 0) {
      Refill();
      Skip(at % 8);
    }
  }

  // Consumes zero bits up to and including the next one bit and returns their number; gives up after `limit`.
  Status Zeros(uint64_t limit, uint64_t* zeros) {
    uint64_t found = 0;
    for (;;) {
      Refill();
      if (held_ == 0) return kTruncated;
      const unsigned run = pending_ == 0 ? 64 : static_cast<unsigned>(__builtin_ctzll(pending_));
      if (run < held_) {
        found += run;
        Skip(run + 1);
        *zeros = found;
        return found > limit ? kBeyondEnd : kFine;
      }
      found += held_;
      Skip(held_);
      if (found > limit) return kBeyondEnd;
    }
  }

  // At most 31 bits.
  Status Bits(unsigned count, uint64_t* bits) {
    if (held_ < count) Refill();
    if (held_ < count) return kTruncated;
    *bits = pending_ & ((uint64_t{1} << count) - 1);
    Skip(count);
    return kFine;
  }

  // The bits read so far.
  uint64_t Consumed() const { return static_cast<uint64_t>(next_ - begin_) * 8 - held_; }

  // Returns the bytes touched so far, or kDirtyPadding if unread bits of the last one are set.
  int64_t Finish() const {
    const uint64_t consumed = Consumed();
    const unsigned used = consumed % 8;
    if (used != 0 && (begin_[consumed / 8] >> used) != 0) return kDirtyPadding;
    return static_cast<int64_t>((consumed + 7) / 8);
  }

  static constexpr Status kFine = static_cast<Status>(0);

 private:
  void Refill() {
    if (end_ - next_ >= 8) {
      // Loads eight bytes at once; bytes that do not fit are read again next time.
      uint64_t word;
      std::memcpy(&word, next_, sizeof word);
      pending_ |= word << held_;
      const unsigned taken = (63 - held_) / 8;
      next_ += taken;
      held_ += taken * 8;
      if (held_ < 64) pending_ &= (uint64_t{1} << held_) - 1;
      return;
    }
    while (held_ <= 56 && next_ != end_) {
      pending_ |= static_cast<uint64_t>(*next_++) << held_;
      held_ += 8;
    }
  }

  void Skip(unsigned count) {
    pending_ = count >= 64 ? 0 : pending_ >> count;
    held_ -= count;
  }

  const uint8_t* const begin_;
  const uint8_t* next_;
  const uint8_t* const end_;
  uint64_t pending_ = 0;
  unsigned held_ = 0;  // at most 63
};

// ---- Rice codes -----------------------------------------------------------------------------------------------------

uint64_t RiceBits(const uint32_t* positions, size_t count, uint32_t parameter) {
  uint64_t quotients = 0;
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    quotients += (positions[i] - next) >> parameter;
    next = positions[i] + 1;
  }
  return quotients + static_cast<uint64_t>(count) * (parameter + 1);
}

// Eight bytes from the bit `at` on, at most 56 to 63 of whose bits are valid: as many as `*held` says.
inline uint64_t LoadBits(const uint8_t* in, uint64_t at, unsigned* held) {
  uint64_t word;
  std::memcpy(&word, in + at / 8, sizeof word);
  *held = 64 - static_cast<unsigned>(at % 8);
  return word >> at % 8;
}

// Hands `count` decoded positions below n to `take`, in increasing order. Returns the bytes read.
template <typename Take>
int64_t RiceDecode(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n, size_t count, Take take) {
  if (parameter > kMaxParameter || n > UINT32_MAX || count > n) return kBadParameter;
  const uint64_t low_bits = (uint64_t{1} << parameter) - 1;
  uint64_t at = 0;  // the first bit that is not decoded yet
  uint64_t next = 0;
  size_t i = 0;
  for (;;) {
    // Several codes out of one word. Whatever is unusual (the end of the input, a long code, a position out of range)
    // is left to the careful reader below.
    bool is_usual = true;
    while (is_usual && i < count && at / 8 + sizeof(uint64_t) <= in_bytes) {
      unsigned held;
      uint64_t word = LoadBits(in, at, &held);
      const unsigned before = held;
      while (i < count) {
        const unsigned zeros = word == 0 ? held : static_cast<unsigned>(__builtin_ctzll(word));
        const unsigned length = zeros + 1 + parameter;
        if (length >= held) break;
        const uint64_t found = next + (static_cast<uint64_t>(zeros) << parameter | (word >> (zeros + 1) & low_bits));
        if (found >= n) break;
        take(i++, static_cast<uint32_t>(found));
        next = found + 1;
        word >>= length;
        held -= length;
      }
      at += before - held;
      is_usual = held != before;
    }
    BitReader reader(in, in_bytes, at);
    if (i == count) return reader.Finish();
    if (next >= n) return kBeyondEnd;
    const uint64_t room = n - 1 - next;
    uint64_t high = 0;
    uint64_t low = 0;
    if (const Status status = reader.Zeros(room >> parameter, &high); status != 0) return status;
    if (const Status status = reader.Bits(parameter, &low); status != 0) return status;
    const uint64_t gap = high << parameter | low;
    if (gap > room) return kBeyondEnd;
    take(i++, static_cast<uint32_t>(next + gap));
    next += gap + 1;
    at = reader.Consumed();
  }
}

// ---- magnitudes -----------------------------------------------------------------------------------------------------

// Eight bits of exponent and four of mantissa: a counting sort in one pass, and the same on both sides of the wire.
constexpr unsigned kBucketShift = 19;
constexpr size_t kBuckets = size_t{1} << (31 - kBucketShift);

// Calls `take` for every position of a mask; it may clear that position.
template <typename Take>
inline void ForEach(const uint32_t* mask, size_t n, Take take) {
  for (size_t start = 0; start < n; start += kLanes) {
    for (uint32_t lanes = mask[start / kLanes]; lanes != 0; lanes &= lanes - 1) {
      const size_t i = start + static_cast<size_t>(__builtin_ctz(lanes));
      if (i < n) take(i);
    }
  }
}

// Writes `what(i)` for the positions i of a mask from `*next` on, as many as fit.
template <typename What>
int64_t TakePieces(const uint32_t* mask, size_t n, size_t* next, uint32_t* out, size_t room, What what) {
  size_t count = 0;
  size_t start = *next / kLanes * kLanes;
  uint32_t lanes = *next < n ? mask[start / kLanes] >> *next % kLanes << *next % kLanes : 0;
  while (start < n) {
    for (; lanes != 0; lanes &= lanes - 1) {
      const size_t i = start + static_cast<size_t>(__builtin_ctz(lanes));
      if (count == room || i >= n) {
        *next = i;
        return static_cast<int64_t>(count);
      }
      out[count++] = what(i);
    }
    start += kLanes;
    if (start < n) lanes = mask[start / kLanes];
  }
  *next = n;
  return static_cast<int64_t>(count);
}

// Independent chains of additions, so that the processor need not wait for each.
constexpr size_t kChains = 4;

inline uint32_t BucketOf(uint32_t value) { return (value & 0x7FFFFFFFu) >> kBucketShift; }

}  // namespace

int64_t se_codec_version() { return 6; }

int64_t se_count_nonzero(const uint32_t* bits, size_t n, uint32_t significant) {
  if (n > UINT32_MAX) return kBadParameter;
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) count += (bits[i] & significant) != 0;
  return static_cast<int64_t>(count);
}

int64_t se_nonzero(const uint32_t* bits, size_t n, uint32_t significant, uint32_t* positions, uint32_t* values,
                   size_t room) {
  size_t count = 0;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint32_t lanes = NonzeroLanes(bits + i, significant); lanes != 0; lanes &= lanes - 1) {
      if (count == room) return kNoRoom;
      const size_t position = i + static_cast<size_t>(__builtin_ctz(lanes));
      positions[count] = static_cast<uint32_t>(position);
      values[count++] = bits[position];
    }
  }
  for (; i < n; ++i) {
    if ((bits[i] & significant) == 0) continue;
    if (count == room) return kNoRoom;
    positions[count] = static_cast<uint32_t>(i);
    values[count++] = bits[i];
  }
  return static_cast<int64_t>(count);
}

int64_t se_complement(const uint32_t* positions, size_t count, size_t n, uint32_t start, uint32_t* others,
                      size_t room) {
  if (n > UINT32_MAX - start || count > n) return kBadParameter;
  for (size_t i = 0; i < count; ++i) {
    if (positions[i] >= n || (i > 0 && positions[i] <= positions[i - 1])) return kBeyondEnd;
  }
  if (n - count > room) return kNoRoom;
  // Without a branch where positions lie close together, since gaps are hard to predict. Before position number i there
  // are positions[i] - i others; those of a gap are written eight at a time, and the next gap overwrites what is too
  // many. Near the end of the room they are written one by one.
  constexpr size_t kAtOnce = 8;
  size_t next = 0;
  for (size_t i = 0; i <= count; ++i) {
    const size_t stop = i < count ? positions[i] : n;
    size_t written = next - i;
    for (size_t from = next; from < stop; from += kAtOnce, written += kAtOnce) {
      const size_t most = room - written < kAtOnce ? stop - from : kAtOnce;
      for (size_t j = 0; j < most; ++j) others[written + j] = start + static_cast<uint32_t>(from + j);
    }
    next = stop + 1;
  }
  return static_cast<int64_t>(n - count);
}

int64_t se_rice_plan(const uint32_t* positions, size_t count, uint32_t* parameter) {
  *parameter = 0;
  if (count == 0) return 0;
  // The cost falls and then rises with the parameter; its minimum is near the logarithm of the mean gap.
  const uint64_t mean = positions[count - 1] / count;
  uint32_t best = 0;
  while (best < kMaxParameter && (mean >> (best + 1)) != 0) ++best;
  uint64_t cost = RiceBits(positions, count, best);
  while (best > 0) {
    const uint64_t below = RiceBits(positions, count, best - 1);
    if (below > cost) break;
    cost = below;
    --best;
  }
  while (best < kMaxParameter) {
    const uint64_t above = RiceBits(positions, count, best + 1);
    if (above >= cost) break;
    cost = above;
    ++best;
  }
  *parameter = best;
  return static_cast<int64_t>((cost + 7) / 8);
}

int64_t se_rice_encode(const uint32_t* positions, size_t count, uint32_t parameter, uint8_t* out, size_t room) {
  if (parameter > kMaxParameter) return kBadParameter;
  BitWriter writer(out, room);
  const uint32_t low = (uint32_t{1} << parameter) - 1;
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    if (positions[i] < next) return kBeyondEnd;
    const uint32_t gap = positions[i] - next;
    next = positions[i] + 1;
    if (!writer.WriteZeros(gap >> parameter)) return kNoRoom;
    if (!writer.Write(1, 1) || !writer.Write(gap & low, parameter)) return kNoRoom;
  }
  return writer.Finish() ? writer.Bytes() : static_cast<int64_t>(kNoRoom);
}

int64_t se_rice_decode(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n, uint32_t start,
                       uint32_t* positions, size_t count) {
  if (n > UINT32_MAX - start) return kBadParameter;
  return RiceDecode(in, in_bytes, parameter, n, count,
                    [&](size_t i, uint32_t position) { positions[i] = start + position; });
}

int64_t se_rice_mask(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n, size_t count, uint32_t zeros,
                     uint32_t* mask) {
  const size_t words = (n + 31) / 32;
  if (words > 0) std::memset(mask, zeros ? 0xFF : 0, words * sizeof(uint32_t));
  if (zeros && n % 32 != 0) mask[words - 1] = (uint32_t{1} << n % 32) - 1;
  return RiceDecode(in, in_bytes, parameter, n, count,
                    [&](size_t, uint32_t position) { mask[position / 32] ^= uint32_t{1} << position % 32; });
}

// ---- subsets of a base ----------------------------------------------------------------------------------------------

int64_t se_magnitude_order(const uint32_t* bits, size_t count, uint32_t* order) {
  uint32_t start[kBuckets + 1] = {};
  for (size_t i = 0; i < count; ++i) ++start[BucketOf(bits[i]) + 1];
  for (size_t bucket = 1; bucket < kBuckets; ++bucket) start[bucket] += start[bucket - 1];
  for (size_t i = 0; i < count; ++i) order[start[BucketOf(bits[i])]++] = static_cast<uint32_t>(i);
  return static_cast<int64_t>(count);
}

int64_t se_dropped_ranks(const uint32_t* base, const uint32_t* base_values, size_t base_count, const uint32_t* order,
                         const uint32_t* kept, size_t kept_count, uint8_t* flags, uint32_t* values, uint32_t* ranks,
                         size_t room) {
  size_t matched = 0;
  for (size_t i = 0; i < base_count; ++i) {
    const bool stays = matched < kept_count && kept[matched] == base[i];
    flags[i] = !stays;
    if (stays) values[matched++] = base_values[i];
  }
  if (matched != kept_count) return kNotNested;
  size_t dropped = 0;
  for (size_t rank = 0; rank < base_count; ++rank) {
    if (!flags[order[rank]]) continue;
    if (dropped == room) return kNoRoom;
    ranks[dropped++] = static_cast<uint32_t>(rank);
  }
  return static_cast<int64_t>(dropped);
}

int64_t se_remaining(const uint32_t* base, const uint32_t* base_values, size_t base_count, const uint32_t* order,
                     const uint32_t* ranks, size_t rank_count, uint8_t* flags, uint32_t* positions, uint32_t* values,
                     size_t room, double* dropped) {
  if (rank_count > base_count || base_count - rank_count != room) return kBadParameter;
  if (base_count > 0) std::memset(flags, 1, base_count);
  for (size_t i = 0; i < rank_count; ++i) {
    if (ranks[i] >= base_count || (i > 0 && ranks[i] <= ranks[i - 1])) return kBeyondEnd;
    flags[order[ranks[i]]] = 0;
  }
  // Without a branch: which entries stay is hard to predict.
  double sums[kChains] = {};
  const auto drop = [&](size_t i) {
    const uint32_t bits = base_values[i] & (uint32_t{flags[i]} - 1);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    sums[i % kChains] += static_cast<double>(value) * static_cast<double>(value);
  };
  size_t count = 0;
  size_t i = 0;
  for (; count < room; ++i) {
    positions[count] = base[i];
    values[count] = base_values[i];
    count += flags[i];
    drop(i);
  }
  for (; i < base_count; ++i) drop(i);
  *dropped = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return static_cast<int64_t>(count);
}

int64_t se_nonzero_mask(const uint32_t* bits, size_t n, uint32_t* mask) {
  if (n > UINT32_MAX) return kBadParameter;
  int64_t count = 0;
  for (size_t i = 0; i < n; i += kLanes) {
    uint32_t lanes = 0;
    if (n - i >= kLanes) {
      lanes = NonzeroLanes(bits + i, UINT32_MAX);
    } else {
      for (size_t j = i; j < n; ++j) lanes |= bits[j] != 0 ? kWeights.of[j - i] : 0;
    }
    mask[i / kLanes] = lanes;
    count += CountBits(lanes);
  }
  return count;
}

int64_t se_drop(const uint32_t* base, size_t n, const uint32_t* ranks, size_t rank_count, uint32_t* mask) {
  // Per bucket: the rank of its next entry, and the first listed rank not below it. Both go by position inside a
  // bucket, so one comparison per entry decides whether it stays.
  uint32_t rank[kBuckets + 1] = {};
  ForEach(mask, n, [&](size_t i) { ++rank[BucketOf(base[i]) + 1]; });
  for (size_t bucket = 1; bucket <= kBuckets; ++bucket) rank[bucket] += rank[bucket - 1];
  const uint32_t held = rank[kBuckets];
  for (size_t i = 0; i < rank_count; ++i) {
    if (ranks[i] >= held || (i > 0 && ranks[i] <= ranks[i - 1])) return kBeyondEnd;
  }
  uint32_t listed[kBuckets];
  size_t next = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    while (next < rank_count && ranks[next] < rank[bucket]) ++next;
    listed[bucket] = static_cast<uint32_t>(next);
  }
  ForEach(mask, n, [&](size_t i) {
    const uint32_t bucket = BucketOf(base[i]);
    const uint32_t own = rank[bucket]++;
    if (listed[bucket] == rank_count || ranks[listed[bucket]] != own) return;
    ++listed[bucket];
    mask[i / kLanes] &= ~kWeights.of[i % kLanes];
  });
  return static_cast<int64_t>(held - rank_count);
}

int64_t se_mask_positions(const uint32_t* mask, size_t n, size_t* next, uint32_t* positions, size_t room) {
  return TakePieces(mask, n, next, positions, room, [](size_t i) { return static_cast<uint32_t>(i); });
}

int64_t se_mask_entries(const uint32_t* mask, const uint32_t* bits, size_t n, size_t* next, uint32_t* entries,
                        size_t room) {
  return TakePieces(mask, n, next, entries, room, [&](size_t i) { return bits[i]; });
}

int64_t se_gather(const uint32_t* bits, size_t n, const uint32_t* positions, size_t count, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) {
    if (positions[i] >= n) return kBeyondEnd;
    out[i] = bits[positions[i]];
  }
  return static_cast<int64_t>(count);
}
