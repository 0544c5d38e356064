"""A round takes less memory than three dense models on top of an idle coordinator, however many devices there are."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.reports import plain_report

from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.run_model import open_model
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts, BatchNorm, Manifest, Parameter
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Offer
from sparsyedge.edge.tensors import State, dense_bytes, model_id
from sparsyedge.edge.wire.error_feedback import encode_with_feedback

LAYERS, SIDE = 5, 512
MODELS = 3
"""Memory that a round may take, in dense models."""
ROUNDS = 3
"""The third round is the first that makes differences to more than one earlier model."""


@pytest.fixture
def layers() -> State:
    """Equal layers, each a fifth of the model like the largest of ResNet-18: one at a time may be dense."""
    generator = np.random.default_rng(5)
    weights = {
        f"{number:02}.weight": generator.standard_normal((SIDE, SIDE), dtype=np.float32) for number in range(LAYERS)
    }
    return weights | {"bn.mean": np.zeros(8, dtype=np.float32), "bn.variance": np.ones(8, dtype=np.float32)}


@pytest.fixture
def deep(manifest: Manifest, layers: State, tmp_path: Path) -> Artifacts:
    """Artifacts of a model with these layers, with just what averaging needs."""
    parameters = tuple(
        Parameter(name, tensor.shape, trainable="bn" not in name, prunable="bn" not in name)
        for name, tensor in layers.items()
    )
    norms = (BatchNorm("bn.mean", "bn.variance", "mean_out", "var_out", 1),)
    method = msgspec.structs.replace(manifest.method, sparsity=0.95)
    changed = msgspec.structs.replace(
        manifest, parameters=parameters, batch_norms=norms, initial_model=model_id(layers), method=method
    )
    return Artifacts(tmp_path / "artifacts", changed)


class Run:
    """A run with its updates in files, so only the coordinator's own memory counts."""

    def __init__(self, folder: Path, artifacts: Artifacts, initial: State, *, devices: int, rule: RuleName) -> None:
        self.folder = folder
        self.manifest = artifacts.manifest
        self.initial = initial
        self.devices = tuple(f"d{number:03}" for number in range(devices))
        config = RunConfig(
            name="r",
            artifacts="-",
            run_dir=str(folder),
            dataset="-",
            rounds=ROUNDS,
            cohort_size=devices,
            aggregation=AggregationConfig(rule=rule),
        )
        self.store = Store.create(folder, name="r", fleet="f", rounds=ROUNDS, dense_bytes=1, config="{}")
        self.parts = open_model(
            config, artifacts, initial, store=self.store, evaluate=lambda state: Evaluation(0.5, 1.0)
        )
        self.model = self.parts.present

    def train(self, round_number: int, base: State) -> Path:
        """Write one device's update as a frame; all devices send the same."""
        generator = np.random.default_rng(round_number)
        moved = {
            name: np.asarray(tensor * (1 + 0.01 * generator.random(tensor.shape, dtype=np.float32)), np.float32)
            for name, tensor in base.items()
        }
        coded = encode_with_feedback(
            prune_global(moved, self.manifest.prunable, self.manifest.method.sparsity),
            {},
            run="r",
            round_number=round_number,
            base_id=self.model.id,
            base=None if self.model.is_initial else base,
            codec="bf16",
            prunable=self.manifest.prunable,
        )
        path = self.folder / f"round-{round_number}.frame"
        path.write_bytes(coded.frame)
        return path

    def take(self, round_number: int, update: Path) -> None:
        """Go through a round like the leader does."""
        model = self.model
        self.store.open_round(
            round_number, base=model.id, base_nonzeros=model.nonzeros, learning_rate=0.1, cohort=self.devices
        )
        for device in self.devices:
            frame = update.read_bytes()
            offer = offer_of(frame, round_number, model.id)
            self.parts.updates.verify(offer, frame)
            self.parts.updates.accept(device, offer, frame)
        self.parts.closing.close_round(round_number, self.devices, elapsed_s=lambda: 1.0)


def offer_of(frame: bytes, round_number: int, base: str) -> Offer:
    report = plain_report("r", round_number)
    return Offer(run="r", round=round_number, base=base, update=blob_of(frame), samples=3, report=report)


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.heavy
@pytest.mark.parametrize(("devices", "rule"), [(3, "mean"), (9, "mean"), (9, "trimmed"), (9, "median"), (9, "krum")])
def test_a_round_takes_less_than_three_dense_models_whatever_the_number_of_devices(
    tmp_path: Path, deep: Artifacts, layers: State, devices: int, rule: RuleName
) -> None:
    dense = dense_bytes(layers)
    with traced():
        run = Run(tmp_path / "run", deep, layers, devices=devices, rule=rule)
        with closing(run.store):
            idle, _ = tracemalloc.get_traced_memory()
            for number in range(1, ROUNDS + 1):
                update = run.train(number, run.model.state)
                tracemalloc.reset_peak()
                run.take(number, update)
                held, peak = tracemalloc.get_traced_memory()
                assert peak - idle < MODELS * dense, f"round {number}"
                # Modules that are imported late, and tables of the interpreter that grow, come to two megabytes.
                assert held - idle < dense / 2, f"after round {number}"


LEARNED = """
import sys
import numpy as np
from pathlib import Path
from sparsyedge.coordinator.allocator import give_back_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "given back":
    give_back_large_blocks()
del (block := [np.ones(20 << 20, dtype=np.uint8)])[:]  # from which glibc learns to keep blocks up to this size
before = resident()
blocks = [np.ones(4 << 20, dtype=np.uint8) for _ in range(16)]
del blocks[:-1]
print((resident() - before) / (64 << 20))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_blocks_of_the_size_of_large_tensors_go_back_to_the_system_when_they_are_freed() -> None:
    kept, given_back = (
        float(subprocess.run([sys.executable, "-c", LEARNED, how], check=True, capture_output=True, text=True).stdout)
        for how in ("kept", "given back")
    )
    assert given_back < 0.1
    if kept < 0.5:
        pytest.skip("this C library gives blocks back by itself")
