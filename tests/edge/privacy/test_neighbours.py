"""Who masks with whom."""

from __future__ import annotations

import pytest

from sparsyedge.edge.privacy.neighbours import neighbours


@pytest.mark.parametrize(("devices", "degree"), [(3, 4), (8, 4), (9, 8), (10, 8), (101, 20)])
def test_neighbours_are_mutual_and_as_many_as_asked(devices: int, degree: int) -> None:
    names = [f"pi-{number}" for number in range(devices)]
    graph = neighbours(names, degree, b"seed")
    assert sorted(graph) == sorted(names)
    for device, others in graph.items():
        assert len(set(others)) == len(others) == min(degree, devices - 1)
        assert device not in others
        assert list(others) == sorted(others)
        assert all(device in graph[other] for other in others)


def test_the_seed_alone_decides() -> None:
    names = [f"pi-{number}" for number in range(50)]
    assert neighbours(names, 6, b"one") == neighbours(reversed(names), 6, b"one")
    assert neighbours(names, 6, b"one") != neighbours(names, 6, b"two")
