#include "plan_lists.h"

#include <algorithm>
#include <tuple>

namespace sparsyedge {

using kernels::BlockVisits;
using kernels::PassShape;
using kernels::Visit;

namespace {

// A visit with its parts of the lists.
struct RowVisit {
  Visit visit;
  std::vector<int32_t> offsets;
  std::vector<int32_t> values;
};

struct Run {
  const Entry* taps[kernels::kMaxRun];
  int size;
};

// Finds the longest runs of neighbours, ordered by their first entries, which are sorted by channel and tap. Neighbours
// are `step` columns apart, so one's source vector is the other's next; with step 2, runs interleave.
void FindRuns(int step, const Entry* begin, const Entry* end, std::vector<Run>& runs) {
  bool taken[kernels::kMaxVisit] = {};
  runs.clear();
  for (const Entry* first = begin; first != end; ++first) {
    if (taken[first - begin]) continue;
    Run run{{first}, 1};
    for (const Entry* next = first + 1; next != end && run.size < kernels::kMaxRun; ++next) {
      if (next->channel != first->channel || next->tap_h != first->tap_h) break;
      if (next->tap_w != run.taps[run.size - 1]->tap_w + step) continue;
      run.taps[run.size++] = next;
      taken[next - begin] = true;
    }
    runs.push_back(run);
  }
}

// Builds the visit of one row in one block, of at most kMaxVisit entries; `runs` is scratch.
RowVisit MakeVisit(const PassShape& s, const Entry* begin, const Entry* end, bool first_of_row, int row,
                   std::vector<Run>& runs) {
  FindRuns(s.step, begin, end, runs);
  RowVisit result{Visit{row, first_of_row, /*repeats=*/0, {}}, {}, {}};
  result.offsets.reserve(runs.size());
  result.values.reserve(end - begin);
  for (int size = 1; size <= kernels::kMaxRun; ++size) {
    for (const Run& run : runs) {
      if (run.size != size) continue;
      const Entry& first = *run.taps[0];
      result.offsets.push_back((first.channel * s.src_plane + first.tap_h * s.src_pitch + first.tap_w) *
                               kernels::kFloatsPerPosition);
      for (int tap = 0; tap < size; ++tap) result.values.push_back(run.taps[tap]->value);
      ++result.visit.run_count[size - 1];
    }
  }
  return result;
}

// On small planes, groups rows by their numbers of runs, so the processor predicts where lists end (5 % on planes of
// 8x8). Larger planes keep rows in order, so it predicts the next row's address instead. A row's first visit stays
// before its others.
void OrderVisits(const PassShape& s, std::vector<RowVisit>& visits) {
  constexpr int kSmallPlane = 64;
  if (s.positions_h * s.positions_w > kSmallPlane) return;
  const auto key = [](const RowVisit& v) {
    return std::tuple(!v.visit.first, v.visit.run_count[2], v.visit.run_count[1], v.visit.run_count[0]);
  };
  std::stable_sort(visits.begin(), visits.end(),
                   [&key](const RowVisit& a, const RowVisit& b) { return key(a) < key(b); });
}

bool SameOffsets(const RowVisit& a, const RowVisit& b) {
  const auto counts = [](const RowVisit& v) { return std::tie(v.visit.run_count[0], v.visit.run_count[1]); };
  return counts(a) == counts(b) && a.offsets == b.offsets;
}

// In an unpruned layer all rows of a block have the same offsets, and its plan has one list for all of them.
void AppendBlock(const std::vector<RowVisit>& visits, Lists& lists) {
  const auto size = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  BlockVisits block{size(lists.visits), 0, size(lists.offsets), size(lists.values)};
  for (size_t i = 0; i < visits.size(); ++i) {
    const RowVisit& row = visits[i];
    lists.visits.push_back(row.visit);
    lists.values.insert(lists.values.end(), row.values.begin(), row.values.end());
    const bool repeats = i + 1 < visits.size() && SameOffsets(row, visits[i + 1]);
    lists.visits.back().repeats = repeats;
    if (!repeats) lists.offsets.insert(lists.offsets.end(), row.offsets.begin(), row.offsets.end());
  }
  block.visit_end = size(lists.visits);
  lists.blocks.push_back(block);
}

// Sorts entries by part, block, row, channel and tap. A counting sort of their numbers by part, block and row, because
// a comparison sort of millions takes seconds; the few of a row in a block are made and sorted when they are asked for.
class SortedEntries {
 public:
  SortedEntries(const PassShape& s, const Entries& entries)
      : shape_(s),
        entries_(entries),
        rows_per_part_((s.rows + s.row_parts - 1) / s.row_parts),
        begin_(static_cast<size_t>(s.row_parts) * s.blocks * rows_per_part_ + 1) {
    ForEach([this](const Entry& entry) { ++begin_[PlaceOf(entry.row, entry.channel / shape_.block) + 1]; });
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    values_.resize(begin_.back());
    std::vector<int32_t> next(begin_.begin(), begin_.end() - 1);
    ForEach(
        [&](const Entry& entry) { values_[next[PlaceOf(entry.row, entry.channel / shape_.block)]++] = entry.value; });
  }

  int rows_per_part() const { return rows_per_part_; }

  // The entries of a row in a block, in the caller's vector.
  void Collect(int row, int block, std::vector<Entry>& found) const {
    const size_t place = PlaceOf(row, block);
    found.resize(static_cast<size_t>(begin_[place + 1] - begin_[place]));
    for (size_t i = 0; i < found.size(); ++i) entries_.at(values_[begin_[place] + i], found[i]);
    SortTaps(found);
  }

 private:
  template <typename Body>
  void ForEach(const Body& body) const {
    Entry entry{};
    for (int32_t value = 0; value < entries_.count; ++value) {
      if (entries_.at(value, entry)) body(entry);
    }
  }

  size_t PlaceOf(int row, int block) const {
    const int part = row / rows_per_part_;
    return (static_cast<size_t>(part) * shape_.blocks + block) * rows_per_part_ + row % rows_per_part_;
  }

  // Forward passes have them in order; gradient passes have the taps of a channel reversed.
  static void SortTaps(std::vector<Entry>& entries) {
    const auto before = [](const Entry& a, const Entry& b) {
      return std::tie(a.channel, a.tap_h, a.tap_w) < std::tie(b.channel, b.tap_h, b.tap_w);
    };
    if (!std::is_sorted(entries.begin(), entries.end(), before)) std::sort(entries.begin(), entries.end(), before);
  }

  const PassShape& shape_;
  const Entries& entries_;
  const int rows_per_part_;
  std::vector<int32_t> begin_;
  std::vector<int32_t> values_;
};

}  // namespace

Lists BuildLists(PassShape& s, const Entries& entries) {
  const SortedEntries sorted(s, entries);
  Lists lists;
  std::vector<char> visited(s.rows);
  std::vector<Entry> found;
  std::vector<Run> runs;
  for (int part = 0; part < s.row_parts; ++part) {
    const int row_end = std::min(s.rows, (part + 1) * sorted.rows_per_part());
    for (int block = 0; block < s.blocks; ++block) {
      std::vector<RowVisit> visits;
      for (int row = part * sorted.rows_per_part(); row < row_end; ++row) {
        sorted.Collect(row, block, found);
        const Entry* begin = found.data();
        const Entry* const row_block_end = begin + found.size();
        // The last block must write rows that no block added to.
        if (begin == row_block_end && (visited[row] || block + 1 < s.blocks)) continue;
        do {
          const Entry* end = std::min(row_block_end, begin + kernels::kMaxVisit);
          visits.push_back(MakeVisit(s, begin, end, !visited[row], row, runs));
          visited[row] = 1;
          begin = end;
        } while (begin != row_block_end);
      }
      OrderVisits(s, visits);
      AppendBlock(visits, lists);
    }
  }
  s.live = static_cast<int32_t>(lists.values.size());
  s.run_total = static_cast<int32_t>(lists.offsets.size());
  s.visit_total = static_cast<int32_t>(lists.visits.size());
  return lists;
}

int32_t SharedLists::Put(const std::vector<int32_t>& list) {
  constexpr size_t kRecent = 8;
  for (const int32_t begin : recent_) {
    const auto at = storage_.begin() + begin;
    const auto room = static_cast<size_t>(storage_.end() - at);
    if (list.size() <= room && std::equal(list.begin(), list.end(), at)) return begin;
  }
  if (recent_.size() == kRecent) recent_.erase(recent_.begin());
  recent_.push_back(static_cast<int32_t>(storage_.size()));
  storage_.insert(storage_.end(), list.begin(), list.end());
  return recent_.back();
}

}  // namespace sparsyedge
