"""The update on disk, and the residuals that go with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fixtures.reports import plain_report

from sparsyedge.edge.device import outbox as outbox_module
from sparsyedge.edge.device.outbox import Outbox, Pending, task_key
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob, Offer, RoundTask

FIRST, SECOND = b"frame of round 1", b"frame of round 2"


def task_of(round_number: int, **changes: Any) -> RoundTask:
    blob = Blob(sha256="a" * 64, bytes=1)
    task = RoundTask(
        run="demo",
        round=round_number,
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
    )
    return msgspec.structs.replace(task, **changes)


def pending_of(task: RoundTask, frame: bytes) -> Pending:
    report = plain_report(task.run, task.round)
    offer = Offer(run=task.run, round=task.round, base=task.model_id, update=blob_of(frame), samples=1, report=report)
    return Pending(task_key(task, "data"), offer)


def put(outbox: Outbox, round_number: int, frame: bytes, residual: bytes = b"") -> None:
    task = task_of(round_number)
    outbox.put(pending_of(task, frame), frame, task=task, residual=residual)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path)


def test_an_update_outlives_the_process_that_made_it(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST)
    again = Outbox(tmp_path)
    assert again.pending == outbox.pending is not None
    assert again.frame() == FIRST


def test_an_accepted_update_hands_its_residual_on(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.accept()
    for kept in (outbox, Outbox(tmp_path)):
        assert kept.residual(task_of(2)) == b"left by 1"
        assert not kept.is_in_doubt(task_of(2))
        assert kept.frame() == FIRST


def test_an_update_that_was_not_accepted_spends_nothing(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.accept()
    put(outbox, 2, SECOND, b"left by 2")
    for kept in (outbox, Outbox(tmp_path)):
        assert kept.is_in_doubt(task_of(3))
        assert kept.residual(task_of(3)) == b"left by 1"


def test_a_refused_update_leaves_what_went_into_it(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.accept()
    put(outbox, 2, SECOND, b"left by 2")
    outbox.refuse()
    for kept in (outbox, Outbox(tmp_path)):
        assert kept.pending is None
        assert not kept.is_in_doubt(task_of(3))
        assert kept.residual(task_of(3)) == b"left by 1"


def test_a_refused_first_update_leaves_nothing(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.refuse()
    assert outbox.residual(task_of(2)) == b""
    assert list(tmp_path.iterdir()) == []


def test_the_note_about_an_older_update_says_nothing_about_the_present_one(outbox: Outbox) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.accept()
    put(outbox, 2, SECOND, b"left by 2")
    outbox.accept()
    assert outbox.residual(task_of(3)) == b"left by 2"
    put(outbox, 3, FIRST, b"left by 3")
    assert outbox.is_in_doubt(task_of(4))


@pytest.mark.parametrize(
    "task",
    [
        task_of(2, run="another"),
        task_of(2, manifest=Blob(sha256="c" * 64, bytes=1)),
        task_of(1),
    ],
    ids=["another run", "other artifacts", "a run that starts over"],
)
def test_a_reset_drops_the_residual(outbox: Outbox, task: RoundTask) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.accept()
    assert outbox.residual(task) == b""


def test_an_update_without_loss_is_never_in_doubt(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST)
    assert not outbox.is_in_doubt(task_of(2))
    outbox.accept()
    assert [path.name for path in tmp_path.iterdir()] == ["update.outbox"]


def test_a_crash_while_an_update_is_written_leaves_the_one_before_with_its_residual(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    outbox.accept()
    writes = []

    def crash(path: Path, content: bytes) -> None:
        writes.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(outbox_module, "write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        put(outbox, 2, SECOND, b"left by 2")
    # There is only one write, so the update is never on disk without its residual.
    assert len(writes) == 1
    after = Outbox(tmp_path)
    assert after.frame() == FIRST
    assert after.residual(task_of(2)) == b"left by 1"


@pytest.mark.parametrize("damage", [b"", b"rust", b"\x94\xc0"])
def test_a_damaged_file_is_removed_with_a_line_in_the_log(
    outbox: Outbox, tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(outbox, 1, FIRST, b"left by 1")
    (tmp_path / "update.outbox").write_bytes(damage)
    again = Outbox(tmp_path)
    assert again.pending is None
    assert "is damaged" in caplog.text
    assert again.residual(task_of(2)) == b""


def test_a_frame_that_is_not_the_offered_one_is_removed(outbox: Outbox, tmp_path: Path) -> None:
    put(outbox, 1, FIRST)
    path = tmp_path / "update.outbox"
    path.write_bytes(path.read_bytes().replace(FIRST, FIRST[::-1]))
    assert Outbox(tmp_path).pending is None
    assert not path.exists()
