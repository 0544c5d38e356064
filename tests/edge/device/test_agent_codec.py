"""Updates in a lossy codec, and the residual they leave for the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fixtures.fake_coordinator import INITIAL, Coordinator, FakeSession, identity, received_state, round_task

from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.messages import Accepted, Offer, Refused, Reply, RoundTask
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire.frame import read_header

pytestmark = pytest.mark.timeout(300)


def lossy_task(round_number: int, **changes: Any) -> RoundTask:
    return round_task(round=round_number, codec="bf16", **changes)


def deliver_round(coordinator: Coordinator, make_agent: Callable[..., Agent], task: RoundTask) -> State:
    """Let the device answer a task and the run finish; returns the state that the coordinator got."""
    coordinator.assembly = None
    coordinator.announce(task)
    make_agent().run()
    return received_state(coordinator)


def left_by(state: State, sent: State) -> FloatArray:
    """What rounding the state took away."""
    return state["conv.weight"] - sent["conv.weight"]


def trained_from_initial() -> State:
    session = FakeSession.__new__(FakeSession)
    session.parameters = {name: tensor.copy() for name, tensor in INITIAL.items()}
    for _ in range(6):
        session.train_step(INITIAL["fc.bias"], np.zeros(1, dtype=np.int64), 0.25)
    return prune_global(session.state(), ["conv.weight"], 0.5)


def test_codec_of_the_run_says_how_the_update_travels(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    sent = deliver_round(coordinator, make_agent, lossy_task(1))
    assert coordinator.assembly is not None
    assert read_header(coordinator.assembly.content()).codec == "bf16"
    assert not (sent["conv.weight"].view(np.uint32) & 0xFFFF).any()
    np.testing.assert_array_equal(sent["fc.bias"], trained_from_initial()["fc.bias"])


def test_what_an_accepted_update_left_over_goes_into_the_next_one_even_after_a_restart(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    first = deliver_round(coordinator, make_agent, lossy_task(1))
    # The same training again, so only the residual makes a difference.
    second = deliver_round(coordinator, make_agent, lossy_task(2))
    trained = trained_from_initial()
    left = left_by(trained, first)
    assert np.abs(left).max() > 0
    exact = trained["conv.weight"] + left
    wanted = np.where(exact == 0, trained["conv.weight"], exact)
    assert np.abs(second["conv.weight"] - wanted).max() <= np.abs(wanted).max() / 256
    assert not np.array_equal(first["conv.weight"], second["conv.weight"])


def test_what_a_refused_update_left_over_is_not_said(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.verdict = lambda offer: Refused(**identity(offer), reason="late")
    first = deliver_round(coordinator, make_agent, lossy_task(1))
    coordinator.verdict = lambda offer: Accepted(**identity(offer))
    second = deliver_round(coordinator, make_agent, lossy_task(2))
    np.testing.assert_array_equal(first["conv.weight"], second["conv.weight"])


def test_a_damaged_residual_is_dropped_and_the_device_goes_on(
    coordinator: Coordinator, make_agent: Callable[..., Agent], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = deliver_round(coordinator, make_agent, lossy_task(1))
    path = tmp_path / "outbox" / "update.outbox"
    content = msgspec.msgpack.decode(path.read_bytes())
    content["after"]["content"] = content["after"]["content"][:-1] + b"?"
    path.write_bytes(msgspec.msgpack.encode(content))
    second = deliver_round(coordinator, make_agent, lossy_task(2))
    assert "what earlier updates left over is lost: packed tensors do not match their digest" in caplog.text
    np.testing.assert_array_equal(first["conv.weight"], second["conv.weight"])


@pytest.mark.parametrize("accepted", [True, False])
def test_a_device_asks_what_became_of_an_update_before_it_makes_the_next(
    accepted: bool, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.announce(lossy_task(1))
    agent = make_agent()
    coordinator.verdict = lambda offer: None
    coordinator.on_offer = lambda: agent.stop() if coordinator.assembly and coordinator.assembly.complete else None
    agent.run()
    first = received_state(coordinator)
    asked: list[int] = []

    def answer(offer: Offer) -> Reply:
        asked.append(offer.round)
        if offer.round == 1:
            # Assemble the second round's frame from scratch.
            coordinator.assembly = None
            return Accepted(**identity(offer)) if accepted else Refused(**identity(offer), reason="round 1 is closed")
        return Accepted(**identity(offer))

    coordinator.on_offer = lambda: None
    coordinator.verdict = answer
    finish = coordinator.after_verdict
    coordinator.after_verdict = lambda: finish() if asked[-1] == 2 else None
    coordinator.announce(lossy_task(2))
    make_agent().run()
    second = received_state(coordinator)
    assert asked[0] == 1
    assert asked[-1] == 2
    assert np.array_equal(first["conv.weight"], second["conv.weight"]) is not accepted
