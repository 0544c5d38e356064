"""When a device offers its update."""

from __future__ import annotations

from collections import deque

import pytest
from fixtures.reports import plain_report
from msgspec import UNSET, UnsetType

from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.protocol.channel import Connected, Health, Received
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Accepted, Offer, RoundTask, Wait, decode, encode
from sparsyedge.edge.protocol.topics import Topics

TOPICS = Topics("lab")
FRAME = b"an update"
UPDATE = blob_of(FRAME)
TASK = RoundTask(
    run="r",
    round=1,
    rounds=1,
    state="open",
    cohort=("d1",),
    manifest=blob_of(b"manifest"),
    model_id="0" * 64,
    model=blob_of(b"model"),
    learning_rate=0.1,
    epochs=1,
    batch_size=16,
    sparsity=0.5,
    seed=0,
    deadline_unix_s=0.0,
)
REPORT = plain_report()


class CoordinatorOnItsSecondStart:
    """A channel to a restarted coordinator, which has forgotten all offers made before it announced its round again."""

    chunk_bytes = UPDATE.chunk_bytes

    def __init__(self) -> None:
        self.inbox: deque[Received] = deque()
        self.offers: list[Offer] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        if topic != TOPICS.offer("d1"):
            return
        self.offers.append(decode(payload, Offer))
        if len(self.offers) == 1:
            self.inbox.append(Received(TOPICS.round, encode(TASK), False))
        else:
            accepted = Accepted(run="r", round=1, update=UPDATE.sha256)
            self.inbox.append(Received(TOPICS.reply("d1"), encode(accepted), False))

    def receive(self, timeout_s: float) -> Received | Connected | None:
        return self.inbox.popleft() if self.inbox else None

    def health(self) -> Health:
        return Health(len(self.inbox))

    def subscribe(self, pattern: str, *, as_published: bool = False, latest: bool = False) -> None: ...

    def unsubscribe(self, pattern: str) -> None: ...

    def open(self, timeout_s: float = 10.0) -> None: ...

    def close(self) -> None: ...


class BusyCoordinator(CoordinatorOnItsSecondStart):
    """A channel to a coordinator that has the device wait, and calls it later."""

    def __init__(self, wait: Wait) -> None:
        super().__init__()
        self.wait = wait
        self.silent_receives = 0

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        if topic == TOPICS.offer("d1"):
            self.offers.append(decode(payload, Offer))
            self.inbox.append(Received(TOPICS.reply("d1"), encode(self.wait), False))

    def receive(self, timeout_s: float) -> Received | Connected | None:
        if self.inbox:
            return self.inbox.popleft()
        self.silent_receives += 1
        if self.silent_receives < 50:
            return None
        accepted = Accepted(run="r", round=1, update=UPDATE.sha256)
        return Received(TOPICS.reply("d1"), encode(accepted), False)


@pytest.mark.parametrize("again_s", [3600.0, UNSET])
def test_a_device_that_was_told_to_wait_does_not_ask_again_meanwhile(
    again_s: float | UnsetType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Without the answer it would ask again at once.
    monkeypatch.setattr(courier_module, "OFFER_AGAIN_S", 0.0)
    monkeypatch.setattr(courier_module, "WAIT_S", 3600.0)
    wait = Wait(run="r", round=1, update=UPDATE.sha256, reason="others go first", again_s=again_s)
    channel = BusyCoordinator(wait)
    courier = Courier(channel, Member(device="d1", topics=TOPICS, boot_id="b", software="s", samples=1))
    offer = Offer(run="r", round=1, base="0" * 64, update=UPDATE, samples=1, report=REPORT)
    assert isinstance(courier.deliver(offer, FRAME, wanted=lambda: True), Accepted)
    assert channel.offers == [offer]
    # Its turn in a queue is nothing to warn of; what it has done wrong is.
    assert ("others go first" in caplog.text) == (again_s is UNSET)


def test_an_offer_is_repeated_when_the_round_is_announced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "OFFER_AGAIN_S", 1e6)
    channel = CoordinatorOnItsSecondStart()
    courier = Courier(channel, Member(device="d1", topics=TOPICS, boot_id="b", software="s", samples=1))
    offer = Offer(run="r", round=1, base="0" * 64, update=UPDATE, samples=1, report=REPORT)
    assert isinstance(courier.deliver(offer, FRAME, wanted=lambda: True), Accepted)
    assert channel.offers == [offer, offer]
