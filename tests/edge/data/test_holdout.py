"""Which samples are held out: a function of seed, device and the sample itself."""

from __future__ import annotations

import numpy as np

from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.holdout import held_out

RNG = np.random.default_rng(5)
X = RNG.integers(0, 256, (400, 3, 4, 4), dtype=np.uint8)
SAMPLES = Samples(X, np.arange(400) % 4)
RECORDED = [4, 7, 10]
"""Devices of all versions must agree with themselves, or they would evaluate on what they have trained on."""


def out(samples: Samples, share: float = 0.2, *, seed: int = 1, device_id: str = "pi-01") -> list[bool]:
    return list(held_out(samples, share, seed=seed, device_id=device_id))


def test_about_the_asked_share_is_held_out_and_no_share_holds_out_nothing() -> None:
    assert 50 < sum(out(SAMPLES)) < 110
    assert sum(out(SAMPLES, 0.0)) == 0


def test_the_choice_is_recorded_and_stays_what_it_is() -> None:
    few = Samples(np.arange(12, dtype=np.uint8).reshape(12, 1, 1, 1), np.zeros(12, dtype=np.int64))
    assert np.flatnonzero(out(few, 0.5)).tolist() == RECORDED


def test_a_sample_never_changes_sides_while_data_grows_shrinks_or_is_reordered() -> None:
    before = out(SAMPLES)
    order = np.random.default_rng(0).permutation(400)
    assert out(SAMPLES.take(order)) == [before[place] for place in order]
    assert out(SAMPLES.take(np.arange(100, 200))) == before[100:200]


def test_a_larger_share_holds_out_the_same_samples_and_more() -> None:
    assert all(larger or not smaller for smaller, larger in zip(out(SAMPLES, 0.1), out(SAMPLES, 0.3), strict=True))


def test_copies_are_on_one_side_whatever_their_labels_are() -> None:
    doubled = Samples(np.concatenate([X, X]), np.concatenate([SAMPLES.y, SAMPLES.y + 1]))
    assert out(doubled) == out(SAMPLES) * 2


def test_seed_and_device_decide() -> None:
    assert out(SAMPLES, seed=2) != out(SAMPLES)
    assert out(SAMPLES, device_id="pi-02") != out(SAMPLES)
