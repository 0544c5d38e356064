// Tensors as rows: the last axis is a row, the others count them.
#pragma once

#include "../op.h"

namespace sparsyedge {

struct Rows {
  size_t count;
  size_t columns;
};

template <typename T>
Rows RowsOf(const Tensor<T>& tensor) {
  if (tensor.shape.empty() || tensor.shape.back() < 1) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) +
                  ", must have a last axis of at least 1 element");
  }
  const auto columns = static_cast<size_t>(tensor.shape.back());
  return {tensor.size / columns, columns};
}

// Rows that one thread does: enough to be worth waking it, and no more than `max_tasks` tasks. Depends on the shape
// alone, so sums per task have the same bits on any number of threads.
struct RowTasks {
  explicit RowTasks(const Rows& rows, size_t max_tasks = 32)
      : count_(rows.count),
        per_task_(std::max({size_t{1}, kMinFloats / rows.columns, (rows.count + max_tasks - 1) / max_tasks})) {}

  size_t count() const { return (count_ + per_task_ - 1) / per_task_; }
  Block at(size_t task) const { return {task, task * per_task_, std::min(count_, (task + 1) * per_task_)}; }

 private:
  static constexpr size_t kMinFloats = 16384;

  size_t count_;
  size_t per_task_;
};

}  // namespace sparsyedge
