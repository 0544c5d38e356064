"""Tables and heaps that never change."""

from __future__ import annotations

import random

from sparsyedge.coordinator.rounds.heap import Heap, heap_of, pop, push
from sparsyedge.coordinator.rounds.table import Table


def test_every_version_of_a_table_keeps_its_items() -> None:
    rng = random.Random(1)
    versions: list[tuple[Table[int], dict[str, int]]] = [(Table(), {})]
    for number in range(500):
        table, items = rng.choice(versions[-3:] if rng.random() < 0.9 else versions)
        name = rng.choice("abcdefgh")
        if rng.random() < 0.7:
            versions.append((table.set(name, number), {**items, name: number}))
        else:
            versions.append((table.without(name), {key: value for key, value in items.items() if key != name}))
    for table, items in rng.sample(versions, len(versions)):
        assert table == items
        assert (len(table), "a" in table, table.get("b", -1)) == (len(items), "a" in items, items.get("b", -1))


def test_a_table_keeps_the_order_of_a_dict() -> None:
    table = Table({"b": 1}).set("a", 2).set("b", 3).set("c", 4).without("a").set("a", 5)
    assert list(table.items()) == [("b", 3), ("c", 4), ("a", 5)]


def test_a_table_without_a_name_that_it_lacks_is_the_same() -> None:
    table = Table({"a": 1})
    assert table.without("b") is table


def test_a_heap_gives_its_items_in_order_and_is_never_changed() -> None:
    rng = random.Random(2)
    numbers = [rng.randint(0, 50) for _ in range(40)]
    heap = heap_of(numbers[:20])
    for number in numbers[20:]:
        heap = push(heap, number)
    for _ in range(2):
        left: Heap[int] = heap
        found = []
        while left is not None:
            found.append(left.least)
            left = pop(left)
        assert found == sorted(numbers)
