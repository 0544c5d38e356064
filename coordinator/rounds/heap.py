"""A heap that never changes: `push` and `pop` give a new one in logarithmic time, and share what stays. Pure.

A leftist heap: the right branch of every node is the short one, and merging only goes down right branches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

__all__ = ["Heap", "heap_of", "pop", "push"]


class Ordered(Protocol):
    def __lt__(self, other: Self, /) -> bool: ...


Item = TypeVar("Item", bound=Ordered)


class Node(NamedTuple, Generic[Item]):
    """A heap with at least one item; `least` is the first to come out."""

    rank: int
    """The length of the right branch."""
    least: Item
    left: Node[Item] | None
    right: Node[Item] | None


Heap = Node[Item] | None


def heap_of(items: Iterable[Item]) -> Heap[Item]:
    """The heap of these items."""
    heap: Heap[Item] = None
    for item in sorted(items, reverse=True):
        heap = Node(1, item, heap, None)
    return heap


def push(heap: Heap[Item], item: Item) -> Heap[Item]:
    """The heap with one more item."""
    return _merge(heap, Node(1, item, None, None))


def pop(heap: Node[Item]) -> Heap[Item]:
    """The heap without its least item."""
    return _merge(heap.left, heap.right)


def _merge(one: Heap[Item], other: Heap[Item]) -> Heap[Item]:
    if one is None:
        return other
    if other is None:
        return one
    if other.least < one.least:
        one, other = other, one
    left, right = one.left, _merge(one.right, other)
    assert right is not None
    if left is None or left.rank < right.rank:
        left, right = right, left
    return Node(right.rank + 1 if right is not None else 1, one.least, left, right)
