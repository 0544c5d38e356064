"""Every method's graphs against torch, and what the step of each must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from fixtures.training_api import evaluate, first_session

from sparsyedge.benchmarks.simulate.torch_session import TorchSession
from sparsyedge.edge.data import Samples
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import METHODS
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.job_inputs import NO_INPUTS, inputs_of
from sparsyedge.edge.training.session import Session, choose_kind
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export.agreement import verify

Export = Callable[..., Artifacts]


def pruned_start(artifacts: Artifacts) -> tuple[Session, State]:
    session = first_session(artifacts)
    return session, prune_global(session.state(), artifacts.manifest.prunable, 0.9)


def batch(size: int = 8) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((size, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, size)


def regrown(artifacts: Artifacts) -> int:
    """Prunable weights that were zero before two steps and are not after them."""
    session, start = pruned_start(artifacts)
    session.load(start)
    for _ in range(2):
        session.train_step(*batch(), 0.1)
    after = session.state()
    return sum(int(np.count_nonzero(after[n][start[n] == 0])) for n in artifacts.manifest.prunable)


@pytest.mark.parametrize("name", METHODS)
def test_a_teacher_forced_step_agrees_with_torch(name: str, export_method: Export) -> None:
    parity = verify(export_method(name))
    assert parity.steps == 3
    assert max(parity.loss, parity.gradient, parity.updated, parity.plain) <= 3e-5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("auto-beta", {"exponent": "sigma"}),
        ("sparsyfed", {"beta": 1.0}),
        ("zerofl", {"sparsity": 0.99}),
        ("topk", {"sparsity": 0.99}),
        ("sparsyfed", {"sparsity": 0.99, "activation_floor": 0.3}),
        ("auto-beta", {"activation_floor": 0.3}),
        ("fixed-mask", {"activation_threshold": "round"}),
        ("flash", {"zero_biases": "frozen"}),
        ("sparsyfed", {"beta": 1.0, "activation_warmup": 2}),
    ],
)
def test_so_does_a_step_with_options(name: str, options: dict[str, Any], export_method: Export) -> None:
    parity = verify(export_method(name, **options))
    assert max(parity.loss, parity.gradient, parity.updated, parity.plain) <= 1e-3


@pytest.mark.parametrize("threshold", ["step", "round"])
def test_a_warm_up_trains_like_no_activation_pruning_and_then_like_all_of_it(
    threshold: str, export_method: Export
) -> None:
    warming = export_method("sparsyfed", activation_warmup=2, activation_threshold=threshold)
    never = export_method("sparsyfed-no-act")
    always = export_method("sparsyfed", activation_threshold=threshold)
    start = prune_global(read_initial_state(warming), warming.manifest.prunable, 0.9)
    for round_number, alike, other in ((1, never, always), (2, never, always), (3, always, never)):
        told = inputs_of(warming.manifest, batch()[1], round_number)
        states = []
        for artifacts, inputs in ((warming, told), (alike, NO_INPUTS), (other, NO_INPUTS)):
            session = SparseSession(artifacts)
            session.load(start)
            for _ in range(2):
                session.train_step(*batch(), 0.1, inputs=inputs)
            states.append(session.state())
        assert all(np.array_equal(states[0][name], states[1][name]) for name in start)
        assert not np.array_equal(states[0]["conv1.weight"], states[2]["conv1.weight"])


@pytest.mark.parametrize("kind", ["training API", "plain graph"])
def test_biases_that_are_zero_stay_so_only_if_they_are_frozen(kind: str, export_method: Export) -> None:
    for options, stays in (({}, False), ({"zero_biases": "frozen"}, True)):
        artifacts = export_method("flash", **options)
        session = first_session(artifacts) if kind == "training API" else SparseSession(artifacts)
        start = read_initial_state(artifacts)
        assert not start["bn1.bias"].any()
        session.load(start)
        for _ in range(2):
            session.train_step(*batch(), 0.1)
        after = session.state()
        biases = [name for name in after if name.endswith("bias")]
        assert all(not after[name].any() for name in biases) == stays
        assert after["bn1.weight"].tolist() != start["bn1.weight"].tolist()


@pytest.mark.parametrize("name", METHODS)
def test_zeros_grow_back_exactly_where_the_method_says_so(name: str, export_method: Export) -> None:
    artifacts = export_method(name)
    if artifacts.manifest.method.zero_grad_at_zero:
        assert regrown(artifacts) == 0
    else:
        assert regrown(artifacts) > 0


def test_biases_and_norms_train_where_weights_are_masked(export_method: Export) -> None:
    artifacts = export_method("fixed-mask")
    session, start = pruned_start(artifacts)
    session.load(start)
    session.train_step(*batch(), 0.1)
    after = session.state()
    others = [p.name for p in artifacts.manifest.parameters if p.trainable and not p.prunable]
    assert all(np.count_nonzero(after[name] != start[name]) for name in others)


@pytest.mark.parametrize(
    ("name", "options"),
    [("auto-beta", {}), ("spectral", {}), ("naive-powerprop", {}), ("zerofl", {"inference": "trained"})],
)
def test_the_delivered_model_computes_what_is_evaluated(
    name: str, options: dict[str, Any], export_method: Export, tmp_path: Path
) -> None:
    artifacts = export_method(name, **options)
    _, start = pruned_start(artifacts)
    session = EvalSession(artifacts)
    session.load(start)
    images = np.random.default_rng(5).integers(0, 256, (8, 3, 16, 16), dtype=np.uint8)
    x, y = Samples(images, np.zeros(8, dtype=np.int64)).batch(np.arange(8))
    _, logits = session.evaluate(x, y)
    write_models(tmp_path, start, artifacts, Origin(run="r", round=1, accuracy=0.5, sparsity=0.9))
    plain = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    found = plain.run(["logits"], {"images": images.transpose(0, 2, 3, 1)})[0]
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)


def test_the_first_forward_with_powers_equals_the_one_without(export_method: Export) -> None:
    x, y = batch()
    exports = [export_method(name) for name in ("sparsyfed", "dense", "topk")]
    losses = [evaluate(each, read_initial_state(each), x, y)[0] for each in exports]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[1] == losses[2]


def test_without_sparsity_and_powers_sparsyfed_is_plain_averaging(export_method: Export) -> None:
    states = []
    for name, options in (("sparsyfed", {"beta": 1.0, "sparsity": 0.0}), ("dense", {})):
        session = first_session(export_method(name, **options))
        session.train_step(*batch(), 0.1)
        states.append(session.state())
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])


def two_steps(session: Session, start: State) -> State:
    """The state after two steps, of which the second sees inputs three times as large."""
    rng = np.random.default_rng(8)
    session.load(start)
    for scale in (1, 3):
        x = scale * rng.standard_normal((8, 3, 16, 16), dtype=np.float32)
        session.train_step(x, rng.integers(0, 5, 8), 0.01)
    return session.state()


def test_a_threshold_of_a_rounds_first_step_stays_until_the_next_round(export_method: Export) -> None:
    kept, afresh = (export_method("sparsyfed", activation_threshold=rule) for rule in ("round", "step"))
    _, start = pruned_start(kept)
    session = SparseSession(kept)
    ours, torchs, others = (
        two_steps(each, start) for each in (session, TorchSession(kept.manifest), TorchSession(afresh.manifest))
    )

    def apart(one: State, other: State) -> float:
        return sum(float(np.linalg.norm(one[name] - other[name])) for name in kept.manifest.prunable)

    # Not the same bits, and a value next to a threshold may fall to one side here and to the other there.
    assert apart(ours, torchs) < 0.1 * apart(torchs, others)
    assert apart(two_steps(session, start), ours) == 0


def test_a_device_trains_with_thresholds_of_the_round_by_the_plain_graph(export_method: Export) -> None:
    manifest = export_method("sparsyfed", activation_threshold="round").manifest
    dense = {name: np.ones(shape, np.float32) for name, shape in manifest.shapes.items()}
    assert choose_kind(manifest, dense, "training") == "sparse"
