"""A rogue with the coordinator's credential, or the broker itself, forges tasks and updates without success."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fixtures.scripted_fleet import TOPICS, FakeDevice, RunThread
from fixtures.secured import make_member

from sparsyedge.coordinator.authority.artifact_signing import sign
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.offer_proofs import UNPROVEN
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.service import Coordinator
from sparsyedge.edge.device.courier import Courier, Member, offline_status
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.chunks import chunk_of
from sparsyedge.edge.protocol.messages import Accepted, Blob, RoundTask, encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.security.identity import Identity
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.trust import Trust
from sparsyedge.edge.tensors import State

pytestmark = pytest.mark.mosquitto

LIMIT_S = 300.0
NAMES = ("d1", "d2")


class Attacked:
    """Two members over TLS, a run that they take part in, and a rogue with the coordinator's own certificate."""

    def __init__(self, authority: Authority, artifacts: Artifacts, initial: State, folder: Path) -> None:
        self.authority = authority
        self.folder = folder
        self.artifacts = sign(authority, artifacts.directory)
        self.initial = initial
        self.config = RunConfig(
            name="r1",
            artifacts=str(artifacts.directory),
            run_dir=str(folder / "run"),
            dataset="none",
            fleet="lab",
            rounds=2,
            cohort_size=len(NAMES),
            codec="lossless",
            deadline_s=LIMIT_S,
            authority=str(authority.folder),
        )
        self.identities = {name: make_member(authority, name, folder / name) for name in NAMES}
        self.devices = {name: self.join(name) for name in NAMES}
        self.rogue = authority.link("rogue")
        self.rogue.open()
        self.couriers: list[Channel] = []

    def join(self, name: str) -> FakeDevice:
        device = FakeDevice(self.authority.settings.port, name, self.initial, self.identities[name])
        device.listen(1.0)
        return device

    def courier(self, name: str) -> tuple[Courier, Trust]:
        """Make a real device's courier, over a connection that reads the same topics."""
        link = self.authority.link(f"observer-{len(self.couriers)}")
        self.couriers.append(link)
        trust = Trust(
            PinnedKeys(self.authority.signing_key), fleet="lab", path=self.folder / "work" / name / "trust.json"
        )
        courier = Courier(link, Member(device=name, topics=TOPICS, boot_id="b", software="s", samples=1), trust=trust)
        link.subscribe(TOPICS.round)
        link.open()
        return courier, trust

    def start(self) -> RunThread:
        coordinator = Coordinator(
            self.config,
            self.artifacts,
            initial=self.initial,
            evaluate=lambda state: Evaluation(0.5, 1.0),
            observer=SilentObserver(),
        )
        return RunThread(coordinator)

    def refused(self, device: str) -> dict[str, int]:
        with closing(Store.open(self.config.run_path)) as store:
            return {refusal.reason: refusal.count for refusal in store.refusals() if refusal.device == device}

    def close(self) -> None:
        for link in (self.rogue, *self.couriers, *(device.link for device in self.devices.values())):
            link.close()


@pytest.fixture
def attacked(secured: Authority, artifacts: Artifacts, initial: State, tmp_path: Path) -> Iterator[Attacked]:
    attacked = Attacked(secured, artifacts, initial, tmp_path)
    try:
        yield attacked
    finally:
        attacked.close()


def wait_until(condition: Callable[[], bool], what: str, listen: Callable[[], object] = lambda: None) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, what
        listen()
        time.sleep(0.01)


def forgeries(honest: RoundTask) -> list[bytes]:
    """Forge tasks that broke devices before: any model, any sparsity, years of epochs, a gigabyte that never comes."""
    huge = Blob(sha256="cd" * 32, bytes=1 << 30)
    altered: list[dict[str, object]] = [
        {"model_id": "ab" * 32, "model": huge, "round": honest.round + 1},
        {"sparsity": 0.1},
        {"epochs": 10**9},
        {"state": "finished"},
        {"run": "mine", "certificate": None, "proof": ""},
    ]
    return [b"", b"rubbish", *(encode(msgspec.structs.replace(honest, **changes)) for changes in altered)]


def test_a_rogue_with_the_coordinators_credential_moves_no_device_from_the_honest_run(
    attacked: Attacked, caplog: pytest.LogCaptureFixture
) -> None:
    run = attacked.start()
    courier, trust = attacked.courier("d1")
    wait_until(lambda: courier.task is not None, "the honest task", courier.listen)
    honest = courier.task
    assert honest is not None
    for forged in forgeries(honest):
        attacked.rogue.publish(TOPICS.round, forged, retain=True)
    # The empty message is no task, so it does not count.
    wait_until(lambda: trust.refused >= len(forgeries(honest)) - 1, "refusals", courier.listen)
    assert courier.task == honest
    assert courier.unreadable == ""
    # The coordinator has published its own task again, so a device that starts now finds it.
    late, _ = attacked.courier("d2")
    wait_until(lambda: late.task == honest, "the honest task, once more", late.listen)
    tasks = [(device, device.until_round(1)) for device in attacked.devices.values()]
    assert all(isinstance(device.deliver(task), Accepted) for device, task in tasks)
    wait_until(lambda: courier.task is not None and courier.task.round == 2, "round 2", courier.listen)
    assert "somebody else publishes tasks as coordinator" in caplog.text
    run.coordinator.interrupt()
    run.result()


def test_a_round_that_is_over_is_not_taken_again_after_a_restart(attacked: Attacked) -> None:
    run = attacked.start()
    courier, _ = attacked.courier("d1")
    wait_until(lambda: courier.task is not None, "round 1", courier.listen)
    first = courier.task
    assert first is not None
    for device in attacked.devices.values():
        device.deliver(device.until_round(1))
    wait_until(lambda: courier.task is not None and courier.task.round == 2, "round 2", courier.listen)
    run.coordinator.interrupt()
    run.result()
    attacked.rogue.publish(TOPICS.round, encode(first), retain=True)
    restarted, trust = attacked.courier("d1")
    wait_until(lambda: trust.refused > 0, "the refusal", restarted.listen)
    assert restarted.task is None
    assert "round 1 of run r1 is over" in trust.alarm


def test_devices_go_on_with_a_run_whose_coordinator_was_started_again(attacked: Attacked) -> None:
    run = attacked.start()
    for device in attacked.devices.values():
        device.deliver(device.until_round(1))
    for device in attacked.devices.values():
        device.until_round(2)
    run.coordinator.interrupt()
    run.result()
    for device in attacked.devices.values():
        device.until(lambda device=device: device.task is not None and device.task.state == "finished")  # type: ignore[misc]
    run = attacked.start()
    for device in attacked.devices.values():
        assert isinstance(device.deliver(device.until_round(2)), Accepted)
    assert run.result().run.state == "finished"
    assert all(device.trust is not None and device.trust.refused == 0 for device in attacked.devices.values())


def test_a_broker_cannot_invent_or_alter_an_update(attacked: Attacked) -> None:
    run = attacked.start()
    victim, other = attacked.devices.values()
    task = victim.until_round(1)
    honest_frame = victim.frame_of(task)
    honest = victim.offer_of(task, honest_frame)
    invented_frame = victim.frame_of(task, {name: tensor * 0 for name, tensor in attacked.initial.items()})
    unsigned = msgspec.structs.replace(victim.offer_of(task, invented_frame), signature="")
    by_another_member = msgspec.structs.replace(other.offer_of(task, invented_frame))
    heavier = msgspec.structs.replace(honest, samples=10**9)
    for forged in (unsigned, by_another_member, heavier):
        attacked.rogue.publish(TOPICS.offer("d1"), encode(forged))
        for index in range(forged.update.chunks):
            chunk = chunk_of(invented_frame, forged.update, index)
            attacked.rogue.publish(TOPICS.upload("d1", forged.update.sha256, index), chunk)
    wait_until(lambda: attacked.refused("d1").get(UNPROVEN) == 3, "three refusals", victim.listen)
    # The device gets no reply to them: on a refusal of the heavier copy it would drop its own update.
    assert victim.replies == []
    assert isinstance(victim.deliver(task), Accepted)
    assert isinstance(other.deliver(other.until_round(1)), Accepted)
    victim.until_round(2)
    with closing(Store.open(attacked.config.run_path)) as store:
        assert store.accepted(1)["d1"] == honest.update.sha256
        assert store.samples(1)["d1"] == honest.samples
        assert all(store.signatures(1).values())
    run.coordinator.interrupt()
    run.result()


def test_a_device_that_enrols_again_is_known_by_its_new_key(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.fleet.offer_proofs.REFRESH_S", 0.0)
    run = attacked.start()
    device = attacked.devices["d1"]
    task = device.until_round(1)
    old = device.offer_of(task, device.frame_of(task))
    device.link.publish(TOPICS.offer("d1"), encode(old))
    device.until(lambda: bool(device.replies))
    attacked.identities["d1"] = make_member(attacked.authority, "d1", attacked.folder / "d1 again")
    device.link.close()
    device = attacked.devices["d1"] = attacked.join("d1")
    assert isinstance(device.deliver(device.until_round(1)), Accepted)
    run.coordinator.interrupt()
    run.result()


def test_two_devices_with_one_identity_are_named(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    run = attacked.start()
    identity: Identity = attacked.identities["d1"]
    couriers = []
    attacked.devices["d1"].link.close()
    for boot_id in ("one" * 10, "two" * 10):
        will = (TOPICS.status("d1"), offline_status(boot_id))
        link = Link("127.0.0.1", attacked.authority.settings.port, identity="d1", will=will, tls=identity.tls)
        attacked.couriers.append(link)
        couriers.append(Courier(link, Member(device="d1", topics=TOPICS, boot_id=boot_id, software="s", samples=1)))
        link.open()

    def listen() -> None:
        for courier in couriers:
            courier.listen(0.05)

    wait_until(lambda: "connected twice with one identity" in caplog.text, "the alarm", listen)
    wait_until(lambda: "another device has this one's identity" in caplog.text, "the device's own word", listen)
    assert main(["devices", str(attacked.config.run_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "alarm: connected twice with one identity (boot ids oneoneoneone and twotwotwotwo)" in said
    run.coordinator.interrupt()
    run.result()
