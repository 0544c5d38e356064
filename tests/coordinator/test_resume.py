"""A coordinator that resumes a run after another process died or stopped, over a real broker."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fixtures.dense_way import average
from fixtures.scripted_fleet import (
    PATIENCE_S,
    TOPICS,
    Fleet,
    RunThread,
    answer,
    blobs_left,
    result_blobs,
    retained_below,
)

from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.fleet.lease import FleetLease
from sparsyedge.coordinator.fleet.lock import RunLock
from sparsyedge.coordinator.model.round_closing import RoundClosing
from sparsyedge.coordinator.record.store import STORE_NAME, ClosedRound, Store
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts, File
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import Accepted, Lease, encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.tensors import model_id

pytestmark = pytest.mark.mosquitto


class Died(Exception):
    """Simulates SIGKILL: the coordinator's own error handling must not run."""


def die(*arguments: object, **keywords: object) -> None:
    raise Died


def die_in_closing_the_only_round(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, where: type, death: Callable[..., None] = die
) -> None:
    """Start a run of one round and one device, whose coordinator dies in `where.close_round`."""
    with monkeypatch.context() as patch:
        patch.setattr(where, "close_round", death)
        run = fleet.start(rounds=1, cohort_size=1)
        (device,) = fleet.join("d1")
        device.deliver(device.until_round(1))
        with pytest.raises(Died):
            run.result()


def left_running(fleet: Fleet) -> None:
    """Make the store look as it does after SIGKILL: without a recorded end."""
    with closing(fleet.store()) as store:
        store.resume_run()


def interrupt(run: RunThread) -> None:
    run.coordinator.interrupt()
    run.result()


def test_an_open_round_goes_on_with_the_updates_that_were_accepted(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=2)
    first, second = fleet.join("d1", "d2")
    task = first.until_round(1)
    first.deliver(task)
    interrupt(run)
    left_running(fleet)
    for device in (first, second):
        device.task = None
    run = fleet.start()
    again = second.until_round(1)
    assert (again.model_id, again.cohort) == (task.model_id, task.cohort)
    assert isinstance(first.ask(first.offer_of(task, first.frame_of(task))), Accepted)
    assert isinstance(second.deliver(again), Accepted)
    summary = run.result()
    expected = average((10 * int(name[-1]), answer(name, 1, fleet.initial)) for name in ("d1", "d2"))
    assert (summary.run.state, summary.run.model_id) == ("finished", model_id(expected))


def test_the_next_round_starts_from_the_model_on_disk(fleet: Fleet) -> None:
    run = fleet.start(rounds=2, cohort_size=1)
    (device,) = fleet.join("d1")
    device.deliver(device.until_round(1))
    task = device.until_round(2)
    interrupt(run)
    left_running(fleet)
    device.task = None
    run = fleet.start()
    again = device.until_round(2)
    assert again.model_id == task.model_id
    assert model_id(device.download(again)) == task.model_id
    device.deliver(again)
    assert run.result().run.model_id == model_id(average([(10, answer("d1", 2, fleet.initial))]))


def test_chunks_that_a_killed_coordinator_left_on_the_broker_are_withdrawn_by_the_next(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        # The coordinator dies when its round closes, and its published messages stay.
        patch.setattr(RoundClosing, "close_round", die)
        run = fleet.start(rounds=1, cohort_size=1)
        (device,) = fleet.join("d1")
        device.deliver(device.until_round(1))
        with pytest.raises(Died):
            run.result()
    artifact = f"{TOPICS.root}/blob/{fleet.artifacts.manifest.files['training'].sha256}/#"
    assert retained_below(fleet.port, artifact)
    # Start another run with other artifacts; it does not know of these.
    path = fleet.artifacts.path("training")
    path.write_bytes(b"another graph")
    file = File("training", hashlib.sha256(b"another graph").hexdigest(), len(b"another graph"))
    fleet.artifacts.manifest.files["training"] = file
    fleet.artifacts.save_manifest()
    device.task = None
    run = fleet.start(name="r2", run_dir=str(tmp_path / "another"))
    task = device.until_round(1)
    device.until(lambda: not retained_below(fleet.port, artifact))
    device.deliver(task)
    run.result()
    device.until(lambda: device.task is not None and device.task.state == "finished")
    assert device.task is not None
    assert blobs_left(fleet.port) == result_blobs(fleet.artifacts, device.task)


def test_a_round_that_had_all_its_updates_is_closed_after_the_restart(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_in_closing_the_only_round(fleet, monkeypatch, RoundClosing)
    summary = fleet.start().result()
    assert summary.run.model_id == model_id(average([(10, answer("d1", 1, fleet.initial))]))


def test_a_round_whose_model_is_written_but_not_recorded_is_closed_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_in_closing_the_only_round(fleet, monkeypatch, Store)
    summary = fleet.start().result()
    assert [record.updates for record in summary.rounds] == [1]
    assert summary.run.model_id == model_id(average([(10, answer("d1", 1, fleet.initial))]))


def test_a_run_whose_last_round_is_recorded_only_delivers_its_model(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[ClosedRound] = []

    def record_and_die(self: Store, closed: ClosedRound) -> None:
        real(self, closed)
        recorded.append(closed)
        raise Died

    real = Store.close_round
    die_in_closing_the_only_round(fleet, monkeypatch, Store, record_and_die)
    summary = fleet.start().result()
    assert (summary.run.state, summary.run.model_id) == ("finished", recorded[0].model_id)
    assert (fleet.config.run_path / "model.onnx").is_file()
    assert list((fleet.config.run_path / "updates").iterdir()) == []


def test_a_run_that_was_cut_short_while_it_was_set_up_begins_again(fleet: Fleet) -> None:
    fleet.config.run_path.mkdir()
    (fleet.config.run_path / STORE_NAME).touch()
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    device.deliver(device.until_round(1))
    assert run.result().run.state == "finished"


def test_a_finished_run_is_not_begun_again(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    device.deliver(device.until_round(1))
    run.result()
    with pytest.raises(
        RunError,
        match=r"run r1 in .* is finished after 1 rounds; raise `rounds` to go on with it, or .* from its model: `init",
    ):
        fleet.start().result()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": LearningRateConfig(start=0.1)}, "put the old value back, change `rounds` as well, or"),
        ({"seed": 5}, "was begun with `seed` = 1337, the config now says 5"),
        ({"name": "other"}, 'was begun with `name` = "r1", the config now says "other"'),
    ],
)
def test_a_run_does_not_go_on_as_another(fleet: Fleet, changes: dict[str, object], sentence: str) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.until_round(1)
    interrupt(run)
    with pytest.raises(RunError, match=sentence):
        fleet.start(None, **changes).result()


def test_a_run_does_not_go_on_with_other_artifacts(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.until_round(1)
    interrupt(run)
    other = msgspec.structs.replace(fleet.artifacts.manifest, seed=99)
    fleet.artifacts = Artifacts(fleet.artifacts.directory, other)
    with pytest.raises(RunError, match="was begun with other artifacts"):
        fleet.start().result()


def test_an_update_that_was_altered_on_disk_is_not_averaged_after_a_restart(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=2)
    first, second = fleet.join("d1", "d2")
    first.deliver(first.until_round(1))
    interrupt(run)
    path = fleet.config.run_path / "updates/1.log"
    path.write_bytes(second.frame_of(second.until_round(1)))
    run = fleet.start(rounds=1, cohort_size=2)
    second.deliver(second.until_round(1))
    with pytest.raises(RunError, match=r"the update of device d1 for round 1 in .* is not the one that was accepted"):
        run.result()


# ---- one coordinator at a time ---------------------------------------------------------------------------------------


def test_a_second_coordinator_on_the_run_directory_is_refused(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.until_round(1)
    with pytest.raises(RunError, match=f"process {os.getpid()} already leads the run in .*coordinator stop"):
        fleet.start().result()
    device.deliver(device.until_round(1))
    interrupt(run)


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from sparsyedge.coordinator.fleet.lock import RunLock; "
        "RunLock(Path(sys.argv[1])).__enter__(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match=f"process {holder.pid} already leads"), RunLock(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with RunLock(tmp_path):
            assert (tmp_path / "coordinator.lock").read_text() == f"{os.getpid()}\n"


def test_a_second_coordinator_of_the_fleet_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    first = fleet.config
    with pytest.raises(RunError, match="fleet lab is already led by run r1"):
        fleet.start(name="r2", run_dir=str(tmp_path / "second")).result()
    fleet.config = first
    assert isinstance(device.deliver(task), Accepted)
    interrupt(run)


def lease_of(port: int, run_dir: Path) -> FleetLease:
    def make_link(identity: str, will: tuple[str, bytes]) -> Link:
        return Link("127.0.0.1", port, identity=identity, will=will)

    return FleetLease(make_link, TOPICS, run="r1", run_dir=run_dir)


def publish_lease(port: int, payload: bytes) -> None:
    link = Link("127.0.0.1", port, identity="other")
    link.open()
    link.publish(TOPICS.lease, payload, retain=True)
    link.close()


def retained_lease(port: int) -> bytes | None:
    link = Link("127.0.0.1", port, identity="reader")
    link.open()
    link.subscribe(TOPICS.lease)
    found = None
    while (event := link.receive(0.5)) is not None:
        if isinstance(event, Received):
            found = event.payload
    link.close()
    return found


OLD = Lease(state="held", holder="gone", run="r0", place="elsewhere:/run", since_unix_s=1.0)


def test_a_lease_that_nobody_answers_for_is_taken_over(mosquitto: int, tmp_path: Path) -> None:
    publish_lease(mosquitto, encode(OLD))
    lease = lease_of(mosquitto, tmp_path)
    lease.acquire()
    lease.check()
    lease.release()
    assert retained_lease(mosquitto) is None


def test_a_lease_of_the_same_directory_is_a_dead_process_s(mosquitto: int, tmp_path: Path) -> None:
    first = lease_of(mosquitto, tmp_path)
    first.acquire()
    second = lease_of(mosquitto, tmp_path)
    second.acquire()
    second.check()
    second.release()
    first.release()


def test_of_two_claims_the_older_one_holds(mosquitto: int, tmp_path: Path) -> None:
    lease = lease_of(mosquitto, tmp_path)
    lease.acquire()
    newer = msgspec.structs.replace(OLD, since_unix_s=1e12)
    publish_lease(mosquitto, encode(newer))
    lease.check()
    publish_lease(mosquitto, encode(OLD))
    until_s = time.monotonic() + PATIENCE_S
    while lease._lost is None and time.monotonic() < until_s:
        time.sleep(0.05)
    with pytest.raises(RunError, match="fleet lab is already led by run r0"):
        lease.check()
    lease.release()


def test_a_lease_that_somebody_cleared_is_renewed(mosquitto: int, tmp_path: Path) -> None:
    lease = lease_of(mosquitto, tmp_path)
    lease.acquire()
    publish_lease(mosquitto, b"")
    found = None
    for _ in range(60):
        found = found or retained_lease(mosquitto)
    assert found is not None
    lease.release()


def test_without_a_lease_the_run_directory_stays_as_it_was(fleet: Fleet, tmp_path: Path) -> None:
    lease = lease_of(fleet.port, tmp_path / "first")
    lease.acquire()
    with pytest.raises(RunError, match="already led"):
        fleet.start(broker=BrokerConfig(port=fleet.port)).result()
    lease.release()
    assert not (fleet.config.run_path / STORE_NAME).exists()
