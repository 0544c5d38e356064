"""What the hub and its engines agree on, and the sentences for engines that cannot work."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparsyedge.benchmarks.common.ports import free_port
from sparsyedge.benchmarks.simulate.engine import Engine, Lost, check_engine
from sparsyedge.benchmarks.simulate.hub import HeldClock, Hub
from sparsyedge.benchmarks.simulate.node_facts import check_facts, facts_function, worker_count
from sparsyedge.benchmarks.simulate.pipe import Message
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.protocol.messages import Blob, RoundTask, encode
from sparsyedge.edge.protocol.topics import Topics

HASH = "0" * 64


class Dying:
    """A worker that is lost in the middle of every turn."""

    def __init__(self) -> None:
        self.device: str | None = None
        self.patterns: set[str] = set()
        self.turns: list[str] = []

    def give_turn(self, device: str) -> None:
        self.device = device
        self.turns.append(device)

    def send(self, message: Message) -> None:
        """It hears nothing."""

    def receive(self) -> Message | Lost | None:
        assert self.device is not None
        lost, self.device = Lost(self.device), None
        return lost


class One:
    """The only worker of an engine."""

    def __init__(self, worker: Dying) -> None:
        self.all = [worker]

    @property
    def busy(self) -> bool:
        return self.all[0].device is not None

    def idle(self) -> Dying | None:
        return None if self.busy else self.all[0]

    def ready(self, timeout_s: float) -> list[Dying]:
        return self.all if self.busy else []


def task(state: str) -> bytes:
    blob = Blob(sha256=HASH, bytes=1, chunk_bytes=1024)
    return encode(
        RoundTask(
            run="run",
            round=1,
            rounds=1,
            state=state,  # type: ignore[arg-type]
            model_id=HASH,
            model=blob,
            manifest=blob,
            cohort=("device-000", "device-001"),
            deadline_unix_s=time.time() + 60,
            learning_rate=0.1,
            epochs=1,
            batch_size=16,
            sparsity=0.9,
            seed=1,
        )
    )


def test_a_lost_turn_is_repeated_first_unless_its_round_is_over(tmp_path: Path) -> None:
    worker, topics = Dying(), Topics("fleet")
    hub = Hub(topics, {}, devices_dir=tmp_path, workers=One(worker), clock=HeldClock(), drop=None)
    hub.publish(topics.round, task("open"), retain=True)
    hub.receive(0)
    hub.receive(0)
    assert worker.turns == ["device-000", "device-000"]
    hub.publish(topics.round, task("closed"), retain=True)
    hub.receive(0)
    assert worker.turns == ["device-000", "device-000"]


@pytest.mark.parametrize(
    ("engine", "link", "sentence"),
    [
        (Engine("processes", "auto"), "memory", "address 'auto' is of a Ray cluster; add --engine ray"),
        (Engine("ray"), "mqtt", "engine `ray` carries messages itself and cannot use link `mqtt`"),
        (Engine("ray", "here"), "memory", "allowed are HOST:PORT and auto"),
        (Engine("ray", "ray://here:10001"), "memory", "allowed are HOST:PORT and auto"),
        (Engine("ray", "here:99999"), "memory", "allowed are HOST:PORT and auto"),
    ],
)
def test_an_engine_that_does_not_fit_is_refused(
    engine: Engine, link: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsyedge.benchmarks.simulate.engine.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=sentence):
        check_engine(engine, link=link)


def test_an_address_where_nobody_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsyedge.benchmarks.simulate.engine.find_spec", lambda name: name)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=rf"nobody answers at {address} \(Connection refused\); start Ray there"):
        check_engine(Engine("ray", address), link="memory")


def test_without_ray_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsyedge.benchmarks.simulate.engine.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engine `ray` needs Ray, which is not installed; run `.* install "):
        check_engine(Engine("ray"), link="memory")


def test_workers_beyond_the_clusters_cores_are_refused() -> None:
    assert worker_count(None, 7, threads=1) == 7
    assert worker_count(3, 7, threads=1) == 3
    with pytest.raises(ConfigError, match=r"--workers has value 8: .* allowed are 1 to 7"):
        worker_count(8, 7, threads=2)
    with pytest.raises(ConfigError, match="no node of the Ray cluster has 4 cores"):
        worker_count(None, 0, threads=4)


def test_nodes_with_other_software_are_refused() -> None:
    ours = {"Python": "3.11.7", "ray": "2.60.0", "sparsyedge": "0.2.0"}
    check_facts("n", ours, ours)
    for name in ours:
        with pytest.raises(ConfigError, match=f"node n of the Ray cluster has {name} 1, this machine {ours[name]}"):
            check_facts("n", ours | {name: "1"}, ours)
    with pytest.raises(ConfigError, match="has sparsyedge none"):
        check_facts("n", {"Python": "3.11.7", "ray": "2.60.0"}, ours)


def test_facts_name_what_a_node_computes_with() -> None:
    facts = facts_function()()
    assert {"Python", "ray", "sparsyedge", "sparsyedge's code", "numpy"} <= set(facts)
    # By reference it would not reach a node without sparsyedge.
    assert "<locals>" in facts_function().__qualname__
    assert not facts_function().__closure__
    script = "import sparsyedge.benchmarks.simulate.simulation, sys; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == 0
