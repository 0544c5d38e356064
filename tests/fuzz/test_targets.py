"""A short run of every fuzz target, and of what was found before; `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.mutation import altered
from fuzz.target import FOUND, SHARES, Target, target
from fuzz.unguided import run

INPUTS = dict.fromkeys(SHARES, 3000) | {"images": 150, "archives": 500}


@pytest.mark.parametrize("name", SHARES)
def test_altered_input_is_refused_or_understood(name: str, tmp_path: Path) -> None:
    assert run(target(name), INPUTS[name], keep=tmp_path) == INPUTS[name]


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_not_found_again(path: Path) -> None:
    target(path.parent.name).check(path.read_bytes())


def test_a_finding_is_raised_and_its_input_kept(tmp_path: Path) -> None:
    def check(data: bytes) -> None:
        assert not data.startswith(b"b")

    with pytest.raises(AssertionError) as found:
        run(Target("sample", lambda: [b"aaaa"], check), 10_000, keep=tmp_path)
    assert (tmp_path / "sample-found").read_bytes().startswith(b"b")
    assert "sample-found" in found.value.__notes__[0]


def test_the_same_seed_makes_the_same_inputs() -> None:
    corpus = [b"one", b"another", bytes(100)]
    first, again, other = (list(altered(corpus, seed=seed, count=200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) > 150
