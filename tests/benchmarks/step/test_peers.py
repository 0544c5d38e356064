"""The peers compute what they claim to: a peer that is fast because it is wrong proves nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from fixtures.artifacts import ExportOnce
from torch.nn import functional

from sparsyedge.benchmarks.step.contestants import CONTESTANTS, open_contestants
from sparsyedge.benchmarks.step.peers_torch import forward, kth_largest, prune, sparsyfed_model
from sparsyedge.benchmarks.step.profiles import PROFILES, mask
from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model, state_of
from sparsyedge.export.reference import prune_activation, reference_step

BETA = 1.25
# Not narrower: torch 2.13 writes beyond its memory in channels_last convolutions of fewer than 8 channels with AVX2.
SPEC = ModelSpec("resnet18", 8, 5, (3, 16, 16))


@pytest.fixture
def narrow(export_once: ExportOnce) -> Artifacts:
    return export_once(SPEC, make_method("sparsyfed", sparsity=0.9, beta=BETA), 3)


@pytest.fixture
def workload(narrow: Artifacts) -> Workload:
    state = mask(
        state_of(build_model(SPEC, beta=BETA, seed=3)), narrow.manifest.prunable, PROFILES["paperlike"], seed=0
    )
    # Eight, because SparseProp takes nothing but multiples of it.
    return Workload.draw(narrow, state, batch=8, threads=1, seed=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_sparsyfed_in_torch_has_the_gradients_of_the_reference(
    workload: Workload, memory_format: torch.memory_format
) -> None:
    # In float64 no value lies so near a threshold that rounding decides about it.
    x, y = torch.from_numpy(workload.x).double(), torch.from_numpy(workload.y)
    reference_model = build_model(SPEC, beta=BETA, seed=3)
    reference_model.load_state_dict({k: torch.from_numpy(v) for k, v in workload.state.items()}, strict=False)
    method = workload.artifacts.manifest.method
    reference = reference_step(reference_model.double(), method, x, y, learning_rate=0.0)

    model = sparsyfed_model(workload).double().to(memory_format=memory_format)  # type: ignore[call-overload]
    loss = functional.cross_entropy(forward(model, x.to(memory_format=memory_format)), y)
    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.item() == pytest.approx(reference.loss, rel=1e-9)
    for name, parameter in model.named_parameters():
        gradient = (parameter.grad + method.weight_decay * parameter).detach().numpy()
        assert gradient == pytest.approx(reference.gradients[name], rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("levels", [3, 1000])
def test_the_fast_selection_keeps_what_the_reference_keeps(density: float, levels: int) -> None:
    rng = np.random.default_rng(0)
    # Few levels make ties, and the ReLU zeros make thresholds of exactly zero.
    x = torch.from_numpy(np.maximum(rng.integers(-levels, levels + 1, (4, 3, 5, 5)), 0).astype(np.float32))
    x = x.to(memory_format=torch.channels_last)
    w = torch.from_numpy((rng.permutation(200) < round(200 * density)).astype(np.float32))
    assert torch.equal(prune(x, w), prune_activation(x, w))


@pytest.mark.parametrize("k", [1, 30, 4000, 20_000, 49_000, 99_999])
@pytest.mark.parametrize("order", ["shuffled", "ascending"])
def test_the_bracketed_threshold_is_exact(k: int, order: str) -> None:
    rng = np.random.default_rng(k)
    values = np.maximum(rng.standard_normal(100_000, dtype=np.float32), 0)
    # An order that the sample cannot represent well must cost time only.
    values = np.sort(values) if order == "ascending" else values
    assert kth_largest(values.copy(), k) == np.sort(values)[-k]


def test_all_contestants_start_from_the_same_function(workload: Workload) -> None:
    opened, unavailable = open_contestants(["torch_dense", "torch_sparsyfed", "ort_stock"], workload)
    assert not unavailable
    losses = [contestant.step() for contestant in opened.values()]
    assert len(losses) == 5
    assert losses == pytest.approx([losses[0]] * 5, rel=1e-5)


def test_the_method_takes_the_same_steps_in_torch_and_in_onnxruntime(workload: Workload) -> None:
    opened, _ = open_contestants(["torch_sparsyfed", "ort_stock"], workload)
    losses = [[contestant.step() for _ in range(3)] for contestant in opened.values()]
    assert losses[0] == pytest.approx(losses[2], rel=1e-3)
    assert losses[1] == pytest.approx(losses[2], rel=1e-3)
    assert losses[0][2] < losses[0][0]


def test_a_peer_that_is_not_installed_is_reported_with_the_way_to_get_it(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sparseprop", None)
    monkeypatch.delitem(sys.modules, "sparseprop.utils", raising=False)
    opened, unavailable = open_contestants(["sparseprop"], workload)
    assert not opened
    assert "pip install --no-build-isolation sparseprop" in unavailable["sparseprop"]


def test_sparseprop_trains_the_dense_model(workload: Workload) -> None:
    pytest.importorskip("sparseprop")
    opened, _ = open_contestants(["sparseprop", "torch_dense"], workload)
    losses = {variant.contestant: contestant.step() for variant, contestant in opened.items()}
    assert losses["sparseprop"] == pytest.approx(losses["torch_dense"], rel=1e-4)


def test_every_contestant_of_the_table_can_be_named() -> None:
    assert list(CONTESTANTS) == ["sparsyedge", "torch_dense", "torch_sparsyfed", "ort_stock", "sparseprop"]
    assert all(variant.contestant == name for name, variants in CONTESTANTS.items() for variant in variants)
