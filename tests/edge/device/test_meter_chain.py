"""Which of a device's meters counts a round when one falls silent, and what is said of it."""

from __future__ import annotations

import logging
from importlib import metadata

import pytest
from msgspec import UNSET

from sparsyedge.edge.compatibility import CALIBRATED_JOULES, Span, Speaks
from sparsyedge.edge.device.energy import EnergyMeter, NullMeter, PhaseRecorder
from sparsyedge.edge.device.equipment import Power
from sparsyedge.edge.device.meter_chain import RETRY_S, MeterChain, open_chain
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind, PhaseCost
from sparsyedge.edge.protocol.messages import Blob, RoundTask


class Hand(NullMeter):
    """A meter that draws `watts` while a test moves the clock, and misses that time while it is `silent`."""

    def __init__(self, name: str, kind: Kind = "measured-rails", watts: float = 1.0) -> None:
        self.name, self.kind, self.watts = name, kind, watts
        self.joules = self.lost_s = 0.0
        self.silent = self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def read_joules(self) -> float:
        return self.joules

    def pass_time(self, seconds: float) -> None:
        if self.running and self.silent:
            self.lost_s += seconds
        elif self.running:
            self.joules += self.watts * seconds


class Bench:
    def __init__(self, *meters: Hand) -> None:
        self.now_s = 0.0
        self.meters = meters
        self.chain = MeterChain(meters, clock=lambda: self.now_s, sleep=self.pass_time)
        self.chain.start()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for meter in self.meters:
            meter.pass_time(seconds)

    def round(self, seconds: float = 10.0) -> PhaseCost:
        self.chain.begin_round()
        recorder = PhaseRecorder(self.chain, clock=lambda: self.now_s)
        with recorder.phase("train"):
            self.pass_time(seconds)
        return recorder.snapshot()["train"]


@pytest.fixture
def bench() -> Bench:
    return Bench(Hand("plug", "measured-board", 5.0), Hand("rapl", watts=2.0))


def test_the_preferred_meter_counts_and_the_others_do_not_run(bench: Bench) -> None:
    assert bench.round() == PhaseCost(10.0, 50.0)
    assert (bench.chain.name, bench.chain.kind) == ("plug", "measured-board")
    assert not bench.meters[1].running


def test_a_meter_that_falls_silent_costs_its_round_and_the_next_one_takes_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.meters[0].silent = True
    assert bench.round() == PhaseCost(10.0, None)
    assert bench.chain.name == "plug"
    with caplog.at_level(logging.WARNING):
        assert bench.round() == PhaseCost(10.0, 20.0)
    assert (bench.chain.name, bench.chain.kind) == ("rapl", "measured-rails")
    assert "plug has fallen silent; from this round on rapl (measured-rails) counts" in caplog.text
    assert not bench.meters[0].running


def test_a_hiccup_changes_nothing(bench: Bench) -> None:
    bench.meters[0].silent = True
    bench.round()
    bench.meters[0].silent = False
    assert bench.round() == PhaseCost(10.0, 50.0)
    assert bench.chain.name == "plug"


def test_the_preferred_meter_counts_again_once_it_is_back(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.meters[0].silent = True
    bench.round()
    bench.round()
    bench.meters[0].silent = False
    assert bench.round(RETRY_S).joules == 2.0 * RETRY_S
    with caplog.at_level(logging.WARNING):
        assert bench.round() == PhaseCost(10.0, 50.0)
    assert "plug answers again; from this round on plug (measured-board) counts" in caplog.text
    assert not bench.meters[1].running


def test_without_any_meter_that_answers_nothing_is_counted_or_made_up(bench: Bench) -> None:
    for meter in bench.meters:
        meter.silent = True
    for _ in range(3):
        assert bench.round(RETRY_S).joules is None
    assert (bench.chain.name, bench.chain.kind) == ("none", "none")
    bench.meters[1].silent = False
    bench.round(RETRY_S)
    assert bench.round().joules == 20.0


def test_the_joules_of_a_chain_never_fall(bench: Bench) -> None:
    seen = [bench.chain.read_joules()]
    for silent in (False, True, True, False, False):
        bench.meters[0].silent = silent
        bench.round(RETRY_S)
        seen.append(bench.chain.read_joules())
    assert seen == sorted(seen)
    assert bench.chain.lost_s == pytest.approx(RETRY_S, rel=0.01)


def test_idle_power_of_one_meter_is_not_subtracted_from_the_joules_of_another(bench: Bench) -> None:
    power = Power(bench.chain, idle_w=3.0)
    assert power.idle_w == 3.0
    bench.meters[0].silent = True
    bench.round()
    bench.round()
    assert power.idle_w is None


def test_calibrated_joules_are_modelled_to_a_coordinator_that_does_not_know_them() -> None:
    chain = Bench(Hand("cpu-model from plug", "calibrated")).chain
    for tells, kind in ((True, "calibrated"), (False, "modelled"), (True, "calibrated")):
        chain.begin_round(tells_calibrated=tells)
        assert chain.kind == kind


def install(monkeypatch: pytest.MonkeyPatch, *meters: str) -> None:
    """Make these the only meters of this machine; a name that ends with `!` finds no sensor."""

    class Entry:
        value = "somewhere:Meter"

        def __init__(self, name: str) -> None:
            self.name = name.rstrip("!")
            self.absent = name.endswith("!")

        def load(self) -> type[EnergyMeter]:
            entry = self

            class Found(Hand):
                name = entry.name

                @classmethod
                def probe(cls, root: object) -> Hand | None:  # type: ignore[override]
                    return None if entry.absent else Hand(entry.name)

            return Found  # type: ignore[return-value]

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry(name) for name in meters])


def test_several_names_are_an_order_and_those_without_a_sensor_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, "a", "b!", "c")
    with caplog.at_level(logging.INFO):
        chain = open_chain(("b", "c", "auto"))
    assert chain.name == "c"
    assert "'b' finds no sensor" in caplog.text
    assert "energy meter: c (measured-rails); then a" in caplog.text


def test_names_that_all_find_no_sensor_are_refused_and_so_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "a!", "b!")
    with pytest.raises(ConfigError, match=r"none of the energy meters a, b can be used: .*'a' finds .*'b' finds"):
        open_chain(("a", "b"))
    with pytest.raises(ConfigError, match="'a' finds no sensor"):
        open_chain("a")


def test_a_device_without_sensors_or_that_wants_none_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "a!")
    for names in ("auto", "none", ("auto", "none")):
        chain = open_chain(names)
        chain.begin_round()
        assert (chain.name, chain.kind, chain.read_joules()) == ("none", "none", 0.0)


@pytest.mark.parametrize(
    ("features", "kind"), [((CALIBRATED_JOULES,), "calibrated"), ((), "modelled"), (None, "modelled")]
)
def test_a_report_is_calibrated_only_if_the_coordinator_of_its_task_has_announced_that_it_knows(
    features: tuple[str, ...] | None, kind: str
) -> None:
    blob = Blob(sha256="a" * 64, bytes=1)
    task = RoundTask(
        run="demo",
        round=1,
        rounds=9,
        state="open",
        cohort=("pi",),
        manifest=blob,
        model_id="b" * 64,
        model=blob,
        learning_rate=0.1,
        epochs=1,
        batch_size=4,
        sparsity=0.5,
        seed=1,
        deadline_unix_s=0.0,
        codec="int8",
        speaks=UNSET if features is None else Speaks(protocol=Span(1, 1), manifest=Span(5, 6), features=features),
    )
    power = Power(Bench(Hand("cpu-model from plug", "calibrated")).chain)
    power.begin_round(task)
    assert power.meter.kind == kind
