"""Batches of one sample, and the smaller last one of an epoch, through the real trainer and the real graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixtures.artifacts import ExportOnce

from sparsyedge.edge.data import Samples
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.training.trainer import LocalJob, Trained, train
from sparsyedge.export.model_spec import ModelSpec

pytestmark = pytest.mark.heavy

NORMED = ModelSpec(f"{Path(__file__).parent / 'modules.py'}:NormedVectors", 1, 4, (10,), sample_type="float32")
VIT = ModelSpec("vit_tiny", 4, 5, (3, 8, 8), sample_type="float32")
METHOD = make_method("sparsyfed", sparsity=0.5)


def run(artifacts: Artifacts, samples: int, batch_size: int) -> tuple[Trained, State]:
    """Train an epoch as a device does."""
    manifest, rng = artifacts.manifest, np.random.default_rng(0)
    x = rng.standard_normal((samples, *manifest.input_shape), dtype=np.float32)
    session = SparseSession(artifacts)
    session.load(read_initial_state(artifacts))
    planes = [norm.plane for norm in manifest.batch_norms]
    trained = train(
        session,
        Samples(x, np.arange(samples) % manifest.classes),
        LocalJob("d", 1, seed=0, epochs=1, batch_size=batch_size, learning_rate=0.1),
        smallest_plane=min(planes, default=None),
    )
    return trained, session.state()


@pytest.fixture(scope="module", params=[NORMED, VIT], ids=["BatchNorm1d", "vit_tiny"])
def artifacts(request: pytest.FixtureRequest, export_once: ExportOnce) -> Artifacts:
    return export_once(request.param, METHOD, 0)


def test_the_last_batch_of_an_epoch_may_be_smaller(artifacts: Artifacts) -> None:
    trained, state = run(artifacts, samples=11, batch_size=4)
    assert trained.steps == 3
    assert all(np.isfinite(value).all() for value in state.values())


def test_one_sample_is_refused_by_a_norm_that_sees_one_value_of_it(export_once: ExportOnce) -> None:
    artifacts = export_once(NORMED, METHOD, 0)
    with pytest.raises(DataError, match="a BatchNorm of this model sees one position"):
        run(artifacts, samples=3, batch_size=1)
    assert run(artifacts, samples=9, batch_size=4)[0].steps == 2  # the last one would have one sample


def test_one_sample_is_a_batch_where_nothing_is_normalised_over_samples(export_once: ExportOnce) -> None:
    artifacts = export_once(VIT, METHOD, 0)
    assert run(artifacts, samples=9, batch_size=4)[0].steps == 3
    trained, state = run(artifacts, samples=3, batch_size=1)
    assert trained.steps == 3
    start = read_initial_state(artifacts)
    changed = [name for name, value in state.items() if not np.array_equal(value, start[name])]
    assert set(changed) == {parameter.name for parameter in artifacts.manifest.parameters if parameter.trainable}
