"""How a device votes for masks: against torch's gradients, and as what travels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixtures.training_api import first_session

from sparsyedge.edge.data import Samples
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global, removed_count
from sparsyedge.edge.tensors import count_nonzero
from sparsyedge.edge.training.mask_votes import vote_for_regrowth, vote_for_start
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.training.trainer import LocalJob, first_batch
from sparsyedge.edge.wire.codecs import CODECS
from sparsyedge.edge.wire.frame import encode_frame
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model
from sparsyedge.export.reference import backward, derive_exponents

Export = Callable[..., Artifacts]
SPEC = ModelSpec("resnet18", width=4, classes=5, input_shape=(3, 16, 16))
JOB = LocalJob("device-0", 1, seed=4, epochs=1, batch_size=8, learning_rate=0.1)


def make_samples() -> Samples:
    x = np.random.default_rng(1).standard_normal((30, *SPEC.input_shape), dtype=np.float32)
    return Samples(x, np.arange(30) % SPEC.classes)


def open_stock(artifacts: Artifacts) -> SparseSession:
    session = SparseSession(artifacts)
    session.load(read_initial_state(artifacts))
    return session


@pytest.mark.parametrize("open_session", [first_session, open_stock])
def test_votes_go_to_the_weights_that_the_loss_depends_on_most(
    open_session: Callable[[Artifacts], Session], export_method: Export
) -> None:
    artifacts = export_method("sparsyfed", start="saliency", sparsity=0.9)
    manifest, initial, samples = artifacts.manifest, read_initial_state(artifacts), make_samples()
    votes = vote_for_start(open_session(artifacts), samples, JOB, manifest)

    module = build_model(SPEC, beta=manifest.method.beta, seed=3).train()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()}, strict=False)
    x, y = samples.batch(first_batch(samples, JOB, smallest_plane=1))
    exponents = derive_exponents(module, manifest.method, manifest.prunable)
    backward(module, manifest.method, torch.from_numpy(x), torch.from_numpy(y), exponents=exponents, thresholds={})
    trained = {name: (w.detach(), w.grad) for name, w in module.named_parameters() if w.grad is not None}
    saliency = np.concatenate(
        [(w * gradient).abs().numpy().reshape(-1) for w, gradient in (trained[name] for name in manifest.prunable)]
    )
    kept = saliency.size - removed_count(saliency.size, 0.9)
    wanted = set(np.argsort(saliency)[-kept:].tolist())
    found = np.flatnonzero(np.concatenate([votes.state[name].reshape(-1) for name in manifest.prunable]))
    assert len(found) == kept
    # Not all: weights next to the threshold fall to one side here and to the other there.
    assert len(wanted & set(found.tolist())) > 0.97 * kept
    assert votes.trained.steps == 1


def test_what_is_not_voted_for_is_zero_and_the_rest_as_it_was(export_method: Export) -> None:
    artifacts = export_method("sparsyfed", start="saliency", sparsity=0.9)
    initial = read_initial_state(artifacts)
    state = vote_for_start(open_stock(artifacts), make_samples(), JOB, artifacts.manifest).state
    for name, tensor in state.items():
        same = tensor == initial[name]
        assert (same | (tensor == 0)).all() if name in artifacts.manifest.prunable else same.all()


def test_an_allocation_shares_the_votes_among_layers(export_method: Export) -> None:
    emptied = {}
    for allocation in ("global", "lamp"):
        artifacts = export_method("sparsyfed", start="saliency", sparsity=0.99, allocation=allocation)
        state = vote_for_start(open_stock(artifacts), make_samples(), JOB, artifacts.manifest).state
        prunable = artifacts.manifest.prunable
        emptied[allocation] = sum(count_nonzero(state, [name]) == 0 for name in prunable)
    assert emptied["lamp"] < emptied["global"]


REGROWING = {"sparsity": 0.8, "regrow_every": 2}
SECOND = LocalJob("device-0", 2, seed=4, epochs=1, batch_size=8, learning_rate=0.1)


def test_zeros_are_voted_for_by_the_gradient_of_theta(export_method: Export) -> None:
    artifacts = export_method("sparsyfed", **REGROWING)
    manifest, samples = artifacts.manifest, make_samples()
    base = prune_global(read_initial_state(artifacts), manifest.prunable, 0.8)
    sent = vote_for_regrowth(SparseSession(artifacts), samples, SECOND, manifest, base=base, state=base)

    # Dense inputs and the gradient of theta, which a zero has as well: plain autograd on the powers.
    module = build_model(SPEC, beta=manifest.method.beta, seed=3).train()
    thetas = {
        name: np.sign(w) * np.abs(w) ** np.float32(1.25) if name in manifest.prunable else w for name, w in base.items()
    }
    module.load_state_dict({name: torch.from_numpy(value) for name, value in thetas.items()}, strict=False)
    x, y = samples.batch(first_batch(samples, SECOND, smallest_plane=1))
    torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()  # type: ignore[no-untyped-call]
    gradients = {name: w.grad.numpy() for name, w in module.named_parameters() if w.grad is not None}
    for name in manifest.prunable:
        new = (sent[name] != 0) & (base[name] == 0)
        held = int(np.count_nonzero(base[name]))
        rows = base[name].reshape(len(base[name]), -1)
        free = (rows == 0) & (rows != 0).any(axis=1, keepdims=True)
        assert np.count_nonzero(new) == min(int(0.2 * held), np.count_nonzero(free))
        if not new.any():
            continue
        ranked = np.sort(np.abs(gradients[name].reshape(rows.shape)[free]))[::-1]
        least = ranked[np.count_nonzero(new) - 1]
        # Weights next to the threshold fall to one side here and to the other there.
        assert (np.abs(gradients[name][new]) >= 0.9 * least).mean() > 0.95
        assert (np.sign(sent[name][new]) == -np.sign(gradients[name][new])).mean() > 0.95
        np.testing.assert_array_equal(sent[name][~new], base[name][~new])


def test_votes_survive_every_codec_and_bf16_to_the_bit(export_method: Export) -> None:
    artifacts = export_method("sparsyfed", **REGROWING)
    manifest = artifacts.manifest
    base = prune_global(read_initial_state(artifacts), manifest.prunable, 0.8)
    sent = vote_for_regrowth(SparseSession(artifacts), make_samples(), SECOND, manifest, base=base, state=base)
    for codec in CODECS:
        coded = encode_frame(
            sent, run="run", round_number=2, base_id="0" * 64, base=base, codec=codec, prunable=manifest.prunable
        )
        for name in manifest.prunable:
            new = (sent[name] != 0) & (base[name] == 0)
            assert (coded.decoded[name][new] != 0).all()
            if codec != "int8":
                np.testing.assert_array_equal(coded.decoded[name][new], sent[name][new])
