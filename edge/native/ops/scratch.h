// Memory that ops use while they compute.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace sparsyedge {

// Scratch memory that the next node on this thread reuses, because fresh pages cost more than what is written into
// them. Aligned to a cache line, because a vector load across two lines costs twice as much.
class Scratch {
 public:
  // Valid until the next call, uninitialised.
  float* Reserve(size_t floats) {
    if (floats > capacity_) {
      constexpr size_t line = 64 / sizeof(float);
      const size_t capacity = (floats + line - 1) / line * line;
      memory_.reset();
      capacity_ = 0;
      memory_.reset(static_cast<float*>(std::aligned_alloc(line * sizeof(float), capacity * sizeof(float))));
      if (memory_ == nullptr) throw std::bad_alloc();
      capacity_ = capacity;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };

  std::unique_ptr<float[], Free> memory_;
  size_t capacity_ = 0;
};

// Gives each running task memory of its own. A task takes the first piece that is free, so one thread always works in
// the same, which stays in its cache; pieces that no thread needs at the same time are never touched.
class Pieces {
 public:
  static constexpr size_t kMaxCount = 32;

  // `memory` holds `count` pieces of `floats` each; at most `count` tasks run at a time.
  Pieces(float* memory, size_t floats) : memory_(memory), floats_(floats) {}

  class Piece {
   public:
    explicit Piece(Pieces& pieces) noexcept : pieces_(pieces), number_(pieces.Take()) {}
    ~Piece() { pieces_.taken_.fetch_and(~(uint32_t{1} << number_)); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    float* data() const { return pieces_.memory_ + number_ * pieces_.floats_; }

   private:
    Pieces& pieces_;
    size_t number_;
  };

 private:
  size_t Take() noexcept {
    uint32_t taken = taken_.load();
    for (;;) {
      const uint32_t first_free = ~taken & (taken + 1);
      if (taken_.compare_exchange_weak(taken, taken | first_free))
        return static_cast<size_t>(__builtin_ctz(first_free));
    }
  }

  float* memory_;
  size_t floats_;
  std::atomic<uint32_t> taken_{0};
};

}  // namespace sparsyedge
