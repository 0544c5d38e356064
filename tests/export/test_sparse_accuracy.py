"""How exact the sparse step is: its gradients on trained masks, against torch in float64 and beside torch in float32.

A ReLU sign or a kept activation that falls on the other side of its threshold changes a gradient by far more than
rounding does, in torch's float32 as well. So a side is compared on batches on which it made the choices of float64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from fixtures.artifacts import ExportOnce
from fixtures.training_api import first_session
from numpy.typing import NDArray

from sparsyedge.edge.data import Dataset, load
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.onnx_runtime import session_options
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.training.trainer import LocalJob, train
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model
from sparsyedge.export.reference import ReferenceStep, reference_step

SEEDS_NEEDED, SEEDS_TRIED = 10, 60
# So large that a value after the step is its gradient: what was there before does not round it away.
RATE = 1000.0
SPEC = ModelSpec("resnet18", width=8, classes=10, input_shape=(3, 32, 32))


@pytest.fixture(scope="module")
def artifacts(export_once: ExportOnce) -> Artifacts:
    return export_once(SPEC, make_method("sparsyfed", sparsity=0.95, beta=1.25), 1)


@pytest.fixture(scope="module")
def data() -> Dataset:
    """CIFAR-10 where $SPARSYEDGE_DATA has it, the digits elsewhere."""
    try:
        return load("cifar10", Path("nowhere"))
    except DataError:
        return load("digits", None)


@pytest.fixture(scope="module")
def trained(artifacts: Artifacts, data: Dataset) -> State:
    """A model with the mask of three real rounds, the first one dense."""
    session: Session = first_session(artifacts)
    samples = data.train.take(np.arange(480))
    for round_number in (1, 2, 3):
        train(session, samples, LocalJob("pi-01", round_number, seed=0, epochs=1, batch_size=16, learning_rate=0.2))
        state = prune_global(session.state(), artifacts.manifest.prunable, 0.95)
        session = SparseSession(artifacts)
        session.load(state)
    return state


@dataclass(frozen=True)
class Sides:
    """One batch on the sparse graph and in torch, in two precisions."""

    sparse: State
    sparse_choices: dict[str, NDArray[np.bool_]]
    single: ReferenceStep
    double: ReferenceStep


def choices_of(reference: ReferenceStep) -> dict[str, NDArray[np.bool_]]:
    signs = {f"relu {at}": sign.numpy() for at, sign in enumerate(reference.relu_signs)}
    return signs | {name: kept.numpy() for name, kept in reference.kept_activations.items()}


def same(a: dict[str, NDArray[np.bool_]], b: dict[str, NDArray[np.bool_]]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in b)


class SparseProbe:
    """The sparse step with its choices as outputs."""

    def __init__(self, artifacts: Artifacts) -> None:
        graph = onnx.load(artifacts.path("sparse_step"))
        nodes = graph.graph.node
        self._relus = [output for node in nodes for output in node.output if output.endswith(".positive")]
        self._saved = {
            output.removesuffix(".saved"): output for n in nodes for output in n.output if output.endswith(".saved")
        }
        self._outputs = [output.name for output in graph.graph.output]
        graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (*self._relus, *self._saved.values()))
        self._session = onnxruntime.InferenceSession(
            graph.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
        )

    def choices(self, session: SparseSession, x: NDArray[Any], y: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
        names = [*self._relus, *self._saved.values()]
        values = dict(zip(names, self._session.run(names, session.feeds(x, y, 0.0)), strict=True))
        signs = {
            f"relu {at}": _lanes(values[name].view(np.uint16)[..., 0], len(x)) for at, name in enumerate(self._relus)
        }
        return signs | {weight: _kept(values[name].tobytes(), len(x)) for weight, name in self._saved.items()}


def _lanes(words: NDArray[np.uint16], batch: int) -> NDArray[np.bool_]:
    """From one word of 16 lanes per position, (groups, channels, height, width), to one bool per element in NCHW."""
    bits = (words[..., None] >> np.arange(16, dtype=np.uint16)) & 1
    groups, channels, height, width, lanes = bits.shape
    return bits.transpose(0, 4, 1, 2, 3).reshape(groups * lanes, channels, height, width)[:batch].astype(np.bool_)


def _kept(saved: bytes, batch: int) -> NDArray[np.bool_]:
    """Which elements a saved activation holds; edge/native/kernels/saved.h describes the bytes."""
    _, encoding, groups, channels, height, width, halo, _ = struct.unpack_from("<II5iI", saved)
    if encoding == 0:
        shape = (groups, channels, height + 2 * halo, width + 2 * halo, 16)
        plane = np.frombuffer(saved, np.float32, offset=64).reshape(shape)
        inner = plane[:, :, halo : halo + height, halo : halo + width] != 0
        kept = inner.transpose(0, 4, 1, 2, 3).reshape(groups * 16, channels, height, width)[:batch]
    else:
        rows = groups * channels * height
        offset = 64 + -(-(rows + 1) * 4 // 64) * 64
        words = np.frombuffer(saved, np.uint16, count=rows * width, offset=offset)
        kept = _lanes(words.reshape(groups, channels, height, width), batch)
    kept = np.asarray(kept, dtype=np.bool_)
    return kept.reshape(batch, -1) if (height, width) == (1, 1) else kept


def sides(artifacts: Artifacts, trained: State, data: Dataset) -> Iterator[Sides]:
    session, probe = SparseSession(artifacts), SparseProbe(artifacts)
    model = build_model(SPEC, beta=1.25, seed=0)
    method = artifacts.manifest.method
    for seed in range(SEEDS_TRIED):
        x, y = data.test.batch(np.random.default_rng(seed).integers(0, len(data.test), 16))
        references = []
        for precision in (torch.float32, torch.float64):
            model.to(precision)
            model.load_state_dict({name: torch.from_numpy(value) for name, value in trained.items()}, strict=False)
            inputs = torch.from_numpy(x).to(precision), torch.from_numpy(y)
            references.append(reference_step(model, method, *inputs, learning_rate=1.0))
        session.load(trained)
        choices = probe.choices(session, x, y)
        session.train_step(x, y, RATE)
        after = session.state()
        gradients = {name: (trained[name].astype(np.float64) - after[name]) / RATE for name in references[0].gradients}
        yield Sides(gradients, choices, *references)  # type: ignore[arg-type]


def worst_error(gradients: State, exact: State, mask: State) -> float:
    """The largest relative L2 difference over all tensors, at the non-zero weights."""
    errors = []
    for name, expected in exact.items():
        kept = mask[name] != 0 if mask[name].ndim > 1 else slice(None)
        scale = float(np.linalg.norm(expected[kept]))
        if scale > 0:
            errors.append(float(np.linalg.norm(gradients[name][kept] - expected[kept])) / scale)
    return max(errors)


def test_gradients_on_a_trained_mask_are_as_exact_as_torchs_own(
    artifacts: Artifacts, trained: State, data: Dataset
) -> None:
    ours, torchs = [], []
    for each in sides(artifacts, trained, data):
        exact, choices = each.double.gradients, choices_of(each.double)
        if same(choices_of(each.single), choices):
            torchs.append(worst_error(each.single.gradients, exact, trained))
        if same(each.sparse_choices, choices):
            ours.append(worst_error(each.sparse, exact, trained))
        if min(len(ours), len(torchs)) >= SEEDS_NEEDED:
            break
    assert len(ours) >= SEEDS_NEEDED, f"the choices of float64 were met on {len(ours)} of {SEEDS_TRIED} batches"
    assert max(ours) <= 3 * max(torchs)
