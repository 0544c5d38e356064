"""Devices that wait for a place to upload are called as soon as one is free, in turn, and only while it helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fixtures.queued_run import DEVICES, TOPICS, Run
from fixtures.reports import plain_report

from sparsyedge.coordinator.fleet import plan
from sparsyedge.coordinator.fleet.waiting_offers import WaitingOffers
from sparsyedge.coordinator.rounds.events import OfferReceived
from sparsyedge.coordinator.rounds.grants import ASKED_S, LEAST_AGAIN_S
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Accepted, Grant, Offer, Refused, Wait, encode
from sparsyedge.edge.tensors import State

Script = Iterator[None]


def offered(device: str, frame: bytes = b"update") -> OfferReceived:
    offer = Offer(run="r1", round=1, base="b", update=blob_of(frame), samples=1, report=plain_report("r1", 1))
    return OfferReceived(device, offer)


def waiting(*devices: str, now_s: float = 0.0) -> WaitingOffers:
    offers = WaitingOffers()
    for device in devices:
        offers.put(offered(device), until_s=now_s + ASKED_S)
    return offers


# ---- the line --------------------------------------------------------------------------------------------------------


def test_nobody_is_first_of_nobody() -> None:
    assert WaitingOffers().first(0.0) is None


def test_whoever_waits_longest_is_first_and_stays_so_until_it_is_removed() -> None:
    offers = waiting("d2", "d1", "d3")
    assert offers.first(1.0) == offers.first(2.0) == offered("d2")
    offers.remove("d2")
    assert offers.first(2.0) == offered("d1")


def test_a_device_that_asks_again_keeps_its_turn_and_counts_with_its_last_offer() -> None:
    offers = waiting("d1", "d2")
    offers.put(offered("d1", b"another update"), until_s=5.0 + ASKED_S)
    assert offers.first(5.0) == offered("d1", b"another update")


def test_a_device_that_has_fallen_silent_is_passed_over_for_good() -> None:
    offers = waiting("d1", "d2")
    offers.put(offered("d2"), until_s=1.0 + ASKED_S)
    assert offers.first(ASKED_S) == offered("d1")
    assert offers.first(ASKED_S + 0.5) == offered("d2")
    assert "d1" not in offers
    assert offers.first(ASKED_S + 1.5) is None


def test_a_device_that_is_removed_goes_to_the_end_when_it_comes_back() -> None:
    offers = waiting("d1", "d2")
    offers.remove("d1")
    offers.remove("unknown")
    offers.put(offered("d1"), until_s=ASKED_S)
    assert offers.first(0.0) == offered("d2")


def test_everybody_is_forgotten_with_the_round() -> None:
    offers = waiting("d1", "d2")
    offers.clear()
    assert offers.first(0.0) is None


# ---- with a leader ---------------------------------------------------------------------------------------------------


def lead(run: Run, script: Script, *, now_s: list[float], upload_bytes: int = 1) -> int:
    """Lead the run; the script goes a step further whenever no message is left. Returns how many updates count."""

    def idle() -> None:
        if next(script, "over") == "over":
            run.interrupted.set()

    with pytest.MonkeyPatch.context() as patch, closing(run.store):
        patch.setattr(plan, "MIN_UPLOAD_BYTES", upload_bytes)
        patch.setattr(plan, "MAX_UPLOAD_BYTES", upload_bytes)
        run.clock = lambda: now_s[0]
        run.link.idle = idle
        for device in DEVICES[:4]:
            run.link.say(device)
        run.lead()
        return sum(record.updates for record in run.store.rounds())


def granted(run: Run) -> list[str]:
    """Who was given a place, in order."""
    return [device for device, reply in run.link.replies if isinstance(reply, Grant)]


@pytest.fixture
def run(tmp_path: Path, artifacts: Artifacts, initial: State) -> Run:
    return Run(tmp_path, artifacts, initial)


def test_all_devices_upload_one_after_the_other_though_each_asks_only_once(run: Run) -> None:
    def script() -> Script:
        yield
        for device in ("d3", "d1", "d4", "d2"):
            run.ask(device)
        yield
        for device in ("d3", "d1", "d4", "d2"):
            assert granted(run)[-1] == device
            run.upload(device)
            yield

    assert lead(run, script(), now_s=[0.0]) == 4
    assert granted(run) == ["d3", "d1", "d4", "d2"]
    assert sum(isinstance(reply, Accepted) for _, reply in run.link.replies) == 4


def test_a_device_is_told_once_that_it_waits_and_again_when_it_asks_again(run: Run) -> None:
    def told() -> list[tuple[str, object]]:
        return [(device, reply.again_s) for device, reply in run.link.replies if isinstance(reply, Wait)]

    def script() -> Script:
        yield
        for device in ("d1", "d2", "d3"):
            run.ask(device)
        yield
        assert told() == [("d2", LEAST_AGAIN_S), ("d3", LEAST_AGAIN_S)]
        # d2 is called; d3 is passed over, which is no news.
        run.upload("d1")
        yield
        assert granted(run) == ["d1", "d2"]
        assert len(told()) == 2
        run.ask("d3")
        yield
        assert told()[2:] == [("d3", LEAST_AGAIN_S)]

    lead(run, script(), now_s=[0.0])


def test_a_device_that_has_gone_offline_is_not_called(run: Run) -> None:
    def script() -> Script:
        yield
        for device in ("d1", "d2", "d3"):
            run.ask(device)
        yield
        run.link.say("d2", state="offline")
        run.upload("d1")
        yield
        assert granted(run) == ["d1", "d3"]

    lead(run, script(), now_s=[0.0])


def test_a_place_that_a_refused_update_leaves_goes_to_the_next_device(run: Run) -> None:
    def script() -> Script:
        yield
        rubbish = b"x" * 500
        offer = msgspec.structs.replace(run.offer("d1")[0], update=blob_of(rubbish))
        run.link.inbox.append(Received(TOPICS.offer("d1"), encode(offer), False))
        run.ask("d2")
        yield
        run.link.inbox.append(Received(TOPICS.upload("d1", offer.update.sha256, 0), rubbish, False))
        yield

    lead(run, script(), now_s=[0.0])
    assert granted(run) == ["d1", "d2"]


def test_a_device_that_wasted_a_place_is_not_called_ahead(run: Run) -> None:
    now_s = [0.0]

    def script() -> Script:
        yield
        run.ask("d1")
        yield
        now_s[0] = 40.0  # d1 sends nothing
        run.ask("d2")
        yield
        run.ask("d1")
        run.ask("d3")
        yield
        assert granted(run) == ["d1", "d2"]
        run.upload("d2")
        yield
        assert granted(run) == ["d1", "d2", "d3"]
        run.upload("d3")
        yield
        assert granted(run) == ["d1", "d2", "d3"]
        run.ask("d1")
        yield

    lead(run, script(), now_s=now_s)
    assert granted(run) == ["d1", "d2", "d3", "d1"]


def test_a_device_that_fell_silent_is_not_called(run: Run) -> None:
    now_s = [0.0]

    def script() -> Script:
        yield
        for device in ("d1", "d2", "d3"):
            run.ask(device)
        yield
        now_s[0] = ASKED_S + 1.0
        run.ask("d3")
        run.upload("d1")
        yield

    lead(run, script(), now_s=now_s)
    assert granted(run) == ["d1", "d3"]


def test_nobody_is_called_after_the_round_closed(tmp_path: Path, artifacts: Artifacts, initial: State) -> None:
    run = Run(tmp_path, artifacts, initial, cohort_size=2, over_selection=1.0, min_devices=4)

    def script() -> Script:
        yield
        for device in DEVICES[:4]:
            run.ask(device)
        yield
        for device in DEVICES[:2]:
            run.upload(device)
            yield

    assert lead(run, script(), now_s=[0.0]) == 2
    assert granted(run) == ["d1", "d2"]


def test_a_device_whose_waiting_offer_became_void_neither_blocks_the_line_nor_is_refused(run: Run) -> None:
    def script() -> Script:
        yield
        run.ask("d1")
        run.ask("d2")
        yield
        assert granted(run) == ["d1", "d2"]
        # d1 would rather send a larger one, for which there is no room; then it finishes the first.
        larger = msgspec.structs.replace(run.offer("d1")[0], update=blob_of(bytes(20_000)))
        run.link.inbox.append(Received(TOPICS.offer("d1"), encode(larger), False))
        run.ask("d3")
        yield
        assert granted(run) == ["d1", "d2"]
        run.upload("d1")
        yield

    room = 2 * max(len(run.offer(device)[1]) for device in ("d1", "d2", "d3"))
    lead(run, script(), now_s=[0.0], upload_bytes=room)
    assert granted(run) == ["d1", "d2", "d3"]
    assert not [reply for _, reply in run.link.replies if isinstance(reply, Refused)]
