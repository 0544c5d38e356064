from __future__ import annotations

from collections.abc import Callable

import pytest
from fixtures.fake_coordinator import TOPICS, Coordinator, FakeSession, round_task, samples

from sparsyedge.edge.config import LimitsConfig
from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.data.form import Form
from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device import local_data as local_data_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.board_sign import BoardSign
from sparsyedge.edge.device.limits import CHECK_S, Limits, Vitals
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import DeviceStatus, decode, encode

pytestmark = pytest.mark.timeout(300)


class Board:
    """A device whose temperature a test sets; its clock advances by CHECK_S on every read."""

    def __init__(self, *celsius: float) -> None:
        self._celsius = list(celsius)
        self._now_s = 0.0
        self.limits = Limits(LimitsConfig(max_temperature_c=80.0), vitals=self._vitals, clock=self._clock)

    def _vitals(self) -> Vitals:
        return Vitals(temperature_c=self._celsius.pop(0) if len(self._celsius) > 1 else self._celsius[0])

    def _clock(self) -> float:
        self._now_s += CHECK_S
        return self._now_s


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "TICK_S", 0.01)


def reasons(coordinator: Coordinator) -> list[str]:
    """The reasons in the device's online statuses; empty when it was fit."""
    statuses = [decode(payload, DeviceStatus) for payload in coordinator.sent("status")]
    return [status.unfit for status in statuses if status.state == "online"]


def test_a_hot_device_declines_with_a_reason_and_trains_when_it_has_cooled_down(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.announce(round_task())
    make_agent(limits=Board(85.0, 84.0, 83.0, 60.0).limits).run()
    assert FakeSession.steps == 6
    assert "temperature is 85.0 C, allowed are 80 C" in reasons(coordinator)
    assert reasons(coordinator)[-1] == ""


def test_a_device_that_gets_hot_while_it_trains_pauses_and_finishes_its_job(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.announce(round_task())
    make_agent(limits=Board(60.0, 60.0, 60.0, 91.0, 90.0, 60.0).limits).run()
    assert FakeSession.steps == 6
    assert len(coordinator.sent("offer")) >= 1
    assert "temperature is 91.0 C, allowed are 80 C" in reasons(coordinator)


class Upgrade:
    """A chore of three steps that then wants a restart."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def wants_restart(self) -> bool:
        return self.steps == 3

    def work(self) -> None:
        self.steps += 1

    def hold(self) -> None: ...

    def note_accepted(self) -> None: ...


def test_a_device_that_may_not_train_upgrades_while_its_round_is_open(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.announce(round_task())
    upgrade = Upgrade()
    make_agent(limits=Board(99.0).limits, chores=upgrade).run()
    assert upgrade.wants_restart
    assert FakeSession.steps == 0


def test_a_device_that_stays_hot_takes_no_part_and_still_leaves_when_the_run_is_over(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.announce(round_task(cohort=("pi-02",)))
    coordinator.announce(round_task(state="finished"))
    make_agent(limits=Board(99.0).limits).run()
    assert FakeSession.steps == 0
    assert reasons(coordinator)[-1].startswith("temperature is 99.0 C")


def test_a_device_whose_data_does_not_suit_the_model_declines_the_run(
    coordinator: Coordinator, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def counted(data: Samples, names: tuple[str, ...], model: Form, *, owner: str) -> Samples:
        tried.append(data)
        coordinator.announce(round_task(round=2))
        coordinator.inbox.append(Received(TOPICS.round, encode(round_task(state="finished")), retained=False))
        return fit_to_model(data, names, model, owner=owner)

    monkeypatch.setattr(local_data_module, "fit_to_model", counted)
    coordinator.announce(round_task())
    make_agent(samples(label=99)).run()
    assert len(tried) == 1
    assert reasons(coordinator)[-1].startswith("this device's data has label 99, the model knows 0..")


def test_a_device_takes_part_in_a_run_after_one_that_it_declined(
    coordinator: Coordinator, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def declined_at_first(data: Samples, names: tuple[str, ...], manifest: Manifest, *, owner: str) -> Samples:
        monkeypatch.setattr(local_data_module, "fit_to_model", fit_to_model)
        coordinator.announce(round_task(run="another"))
        raise DataError("all batches hold one sample")

    monkeypatch.setattr(local_data_module, "fit_to_model", declined_at_first)
    coordinator.announce(round_task())
    make_agent().run()
    assert "all batches hold one sample" in reasons(coordinator)
    assert reasons(coordinator)[-1] == ""
    assert FakeSession.steps == 6


def test_the_boards_sign_follows_the_device_through_a_round(
    coordinator: Coordinator, make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(BoardSign, "show", lambda sign, state, sentence: shown.append((state, sentence)))
    coordinator.announce(round_task())
    make_agent(limits=Board(60.0, 60.0, 60.0, 91.0, 90.0, 60.0).limits).run()
    states = [state for (state, _), (before, _) in zip(shown, [("", ""), *shown], strict=False) if state != before]
    assert [state for state in states if state != "waiting"] == ["training", "paused", "training", "sending"]
    assert any("temperature is 91.0 C" in sentence for state, sentence in shown if state == "paused")
    assert any("training in round 1 of" in sentence for state, sentence in shown if state == "training")
