"""BatchNorm never sees one sample alone without a word about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pytest
from fixtures.forgetful import Forgetful

from sparsyedge.edge.data import Labels, Samples
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.session import Kind
from sparsyedge.edge.training.trainer import LocalJob, train


class CountingSession(Forgetful):
    """Writes down how large each batch was."""

    kind: Kind = "dense"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def load(self, state: Mapping[str, FloatArray]) -> None: ...

    def state(self) -> State:
        return {}

    def train_step(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> float:
        self.batches.append(len(x))
        return 1.0


def run(samples: int, batch_size: int, smallest_plane: int | None = 4) -> list[int]:
    session = CountingSession()
    data = Samples(np.zeros((samples, 1, 2, 2), dtype=np.float32), np.zeros(samples, dtype=np.int64))
    job = LocalJob("d", 1, seed=0, epochs=1, batch_size=batch_size, learning_rate=0.1)
    train(session, data, job, smallest_plane=smallest_plane)
    return session.batches


def test_whole_batches_and_larger_rests_are_trained_without_a_note(caplog: pytest.LogCaptureFixture) -> None:
    assert run(samples=10, batch_size=4) == [4, 4, 2]
    assert not caplog.records


def test_a_rest_of_one_sample_is_skipped_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(samples=9, batch_size=4) == [4, 4]
    assert "1 of 3 batches hold one sample and are skipped" in caplog.text


def test_a_device_with_one_sample_trains_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(samples=1, batch_size=4) == [1]
    assert "batches of one sample" in caplog.text


def test_one_sample_is_refused_where_a_norm_would_see_one_value() -> None:
    with pytest.raises(DataError, match="`batch_size` of at least 2"):
        run(samples=1, batch_size=4, smallest_plane=1)


def test_a_network_without_batch_norm_trains_on_every_sample(caplog: pytest.LogCaptureFixture) -> None:
    assert run(samples=9, batch_size=4, smallest_plane=None) == [4, 4, 1]
    assert run(samples=1, batch_size=4, smallest_plane=None) == [1]
    assert not caplog.records
