"""Which tasks a device of a secured fleet believes, and what forged and replayed ones do to it: nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.fake_coordinator import TOPICS, Coordinator, FakeSession, round_task

from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import Blob, DeviceStatus, RoundTask, decode, encode
from sparsyedge.edge.security import trust as trust_module
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.run_seal import certify, seal
from sparsyedge.edge.security.trust import Trust

MakeAgent = Callable[..., Agent]
SIGNING_KEY, RUN_KEY, OTHER_KEY = (Ed25519PrivateKey.generate() for _ in range(3))


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def sealed(
    *,
    fleet: str = "home",
    run: str = "demo",
    serial: int = 5,
    key: Ed25519PrivateKey = RUN_KEY,
    signer: Ed25519PrivateKey = SIGNING_KEY,
    **changes: object,
) -> RoundTask:
    """A task as a coordinator signs it."""
    certificate = certify(public(key), fleet=fleet, run=run, serial=serial, signing_key=signer)
    return seal(round_task(**{"run": run, "certificate": certificate, **changes}), key)


@pytest.fixture
def make_trust(tmp_path: Path) -> Callable[[], Trust]:
    """Loads a device's trust from disk; each call acts as a restart."""
    return lambda: Trust(PinnedKeys(public(SIGNING_KEY)), fleet="home", path=tmp_path / "work" / "trust.json")


def test_the_operators_task_is_believed_also_when_it_is_repeated(make_trust: Callable[[], Trust]) -> None:
    trust = make_trust()
    for _ in range(2):
        assert trust.believes(encode(sealed()))
    assert trust.believes(encode(sealed(state="closed")))
    assert trust.refused == 0
    assert trust.alarm == ""


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (round_task(), "names no certified run key"),
        (sealed(signer=OTHER_KEY), "not certified by key"),
        (sealed(fleet="lab"), "certified for fleet lab, this is fleet home"),
        (sealed(run="other", certificate=sealed().certificate), "its run key is certified for run demo"),
        (msgspec.structs.replace(sealed(), proof="00" * 64), "not signed by run key"),
        (msgspec.structs.replace(sealed(), proof=""), "not signed by run key"),
        (seal(sealed(), OTHER_KEY), "not signed by run key"),
    ],
    ids=["unsigned", "other authority", "other fleet", "other run", "false proof", "no proof", "other run key"],
)
def test_a_task_of_somebody_else_is_refused_with_its_reason(
    forged: RoundTask, reason: str, make_trust: Callable[[], Trust], caplog: pytest.LogCaptureFixture
) -> None:
    trust = make_trust()
    assert not trust.believes(encode(forged))
    assert trust.refused == 1
    assert reason in caplog.text
    assert reason in trust.alarm


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 9},
        {"sparsity": 0.1},
        {"model_id": "ab" * 32},
        {"model": Blob(sha256="cd" * 32, bytes=1 << 30)},
        {"learning_rate": 0.3},
        {"cohort": ("pi-09",)},
        {"state": "finished"},
        {"round": 9},
        {"rounds": 1000},
        {"seed": 2},
        {"batch_size": 1},
        {"codec": "int8"},
        {"signature": "ee" * 64},
        {"manifest": Blob(sha256="cd" * 32, bytes=10)},
        {"deadline_unix_s": 1.0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_field_of_a_signed_task_may_change(changes: dict[str, object], make_trust: Callable[[], Trust]) -> None:
    altered = msgspec.structs.replace(sealed(), **changes)
    assert not make_trust().believes(encode(altered))


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"proof":""}'])
def test_rubbish_is_refused(payload: bytes, make_trust: Callable[[], Trust]) -> None:
    assert not make_trust().believes(payload)


def test_an_older_round_is_refused_after_a_restart_too(make_trust: Callable[[], Trust]) -> None:
    assert make_trust().believes(encode(sealed(round=3)))
    trust = make_trust()
    assert not trust.believes(encode(sealed(round=2)))
    assert "round 2 of run demo is over: round 3 was seen" in trust.alarm
    assert trust.believes(encode(sealed(round=3)))
    assert trust.believes(encode(sealed(round=4)))


def test_an_earlier_run_is_refused_after_a_later_one_until_it_is_certified_anew(
    make_trust: Callable[[], Trust],
) -> None:
    first, again = sealed(serial=5, round=60), sealed(serial=9, round=61)
    second = sealed(serial=7, run="next", key=OTHER_KEY)
    assert make_trust().believes(encode(first))
    assert make_trust().believes(encode(second))
    trust = make_trust()
    assert not trust.believes(encode(first))
    assert "sign --run RUN.toml" in trust.alarm
    assert trust.believes(encode(again))
    assert not trust.believes(encode(second))
    # A run of the same name that starts over has a later certificate, and rounds of its own.
    assert trust.believes(encode(sealed(serial=10, key=Ed25519PrivateKey.generate(), round=1)))


def test_a_forged_later_task_does_not_make_the_honest_one_old(make_trust: Callable[[], Trust]) -> None:
    trust = make_trust()
    assert not trust.believes(encode(sealed(serial=2**50, signer=OTHER_KEY, round=10**9)))
    assert not trust.believes(encode(msgspec.structs.replace(sealed(), round=10**9)))
    assert trust.believes(encode(sealed()))


def test_a_damaged_file_is_named_and_written_anew(
    make_trust: Callable[[], Trust], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert make_trust().believes(encode(sealed(round=3)))
    path = tmp_path / "work" / "trust.json"
    path.write_bytes(b"\xff")
    assert make_trust().believes(encode(sealed(round=4)))
    assert "trust.json" in caplog.text
    assert not make_trust().believes(encode(sealed(round=3)))


def test_many_forged_tasks_are_one_line_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    times_s = [second for second in (0.0, 1.0, 30.0, trust_module.LOG_AGAIN_S + 1) for _ in range(50)]
    clock = iter(times_s)
    trust = Trust(
        PinnedKeys(public(SIGNING_KEY)), fleet="home", path=tmp_path / "trust.json", clock=lambda: next(clock)
    )
    for _ in times_s:
        trust.believes(encode(round_task()))
    assert len(caplog.records) == 2
    assert trust.refused == 200


def receive(courier: Courier, coordinator: Coordinator, payload: bytes) -> None:
    coordinator.inbox.append(Received(TOPICS.round, payload, retained=False))
    courier.drain()


@pytest.fixture
def courier(coordinator: Coordinator, make_trust: Callable[[], Trust]) -> Courier:
    member = Member(device="pi-01", topics=TOPICS, boot_id="boot", software="test", samples=1)
    return Courier(coordinator, member, trust=make_trust())


@pytest.mark.parametrize(
    "forged", [b"", b"rubbish", encode(round_task(state="finished")), encode(round_task(round=2, epochs=10_000))]
)
def test_a_forged_task_neither_replaces_the_last_good_one_nor_makes_a_device_unfit(
    forged: bytes, courier: Courier, coordinator: Coordinator
) -> None:
    honest = sealed()
    receive(courier, coordinator, encode(honest))
    receive(courier, coordinator, forged)
    assert courier.task == honest
    assert courier.unreadable == ""


def test_the_coordinator_hears_of_forged_tasks_with_the_next_status(courier: Courier, coordinator: Coordinator) -> None:
    receive(courier, coordinator, encode(round_task()))
    courier.refresh()
    assert "refused 1 forged or replayed tasks" in decode(coordinator.sent("status")[-1], DeviceStatus).alarm


def sealed_by_another_version(**fields: object) -> bytes:
    certificate = certify(public(RUN_KEY), fleet="home", run="demo", serial=5, signing_key=SIGNING_KEY)
    content = msgspec.json.decode(encode(round_task(certificate=certificate)))
    content.pop("proof")
    signed = msgspec.json.encode({**content, **fields})[:-1]
    proof = RUN_KEY.sign(b"sparsyedge task 1\n" + signed).hex()
    return signed + f',"proof":"{proof}"}}'.encode()


def test_a_signed_task_that_cannot_be_read_is_a_reason_not_to_train(courier: Courier, coordinator: Coordinator) -> None:
    receive(courier, coordinator, sealed_by_another_version(epochs="two"))
    assert courier.task is None
    assert "do both run the same version" in courier.unreadable


def test_a_signed_task_may_have_fields_of_a_later_version(courier: Courier, coordinator: Coordinator) -> None:
    receive(courier, coordinator, sealed_by_another_version(colour="red", more={"deep": [1]}))
    assert courier.task is not None
    assert (courier.task.run, courier.unreadable) == ("demo", "")


def test_a_signed_field_of_a_later_version_cannot_be_altered(courier: Courier, coordinator: Coordinator) -> None:
    honest = sealed_by_another_version(colour="red")
    receive(courier, coordinator, honest.replace(b'"red"', b'"rod"'))
    receive(courier, coordinator, honest[:-1] + b',"colour":"red"}')
    assert courier.task is None


def test_a_forged_version_does_not_make_a_device_unfit(courier: Courier, coordinator: Coordinator) -> None:
    receive(courier, coordinator, encode(round_task(protocol=9)))
    assert courier.unreadable == ""
    receive(courier, coordinator, sealed_by_another_version(protocol=9))
    assert courier.unreadable.startswith("upgrade sparsyedge on pi-01: ")


def test_a_device_trains_the_honest_round_while_forged_tasks_come_in(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    make_trust: Callable[[], Trust],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(courier_module, "TICK_S", 0.01)
    trust = make_trust()
    coordinator.announce(sealed())
    forgeries = (round_task(state="closed"), round_task(round=2, epochs=10_000), round_task(run="other"))

    def forge() -> None:
        for forged in forgeries:
            coordinator.announce(forged)

    monkeypatch.setattr(FakeSession, "on_step", forge)
    coordinator.after_verdict = lambda: coordinator.announce(sealed(state="finished"))
    make_agent(trust=trust).run()
    assert coordinator.sent("offer")
    assert trust.refused >= len(forgeries)
