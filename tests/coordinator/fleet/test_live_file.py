"""The live record while a run goes on: whatever happens to the file, the run does not stop."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.clockwork import PLAN, Run

from sparsyedge.coordinator.fleet.activities import Activities
from sparsyedge.coordinator.fleet.live_file import RETRY_S, LiveFile, own_costs
from sparsyedge.coordinator.record.live import LIVE_NAME, LiveReader, Present
from sparsyedge.edge.protocol.messages import Progress, encode

PRESENT = Present(
    round=1,
    stage="open",
    sentence="round 1 waits for 2 of 2 devices",
    until=None,
    online=2,
    accepted=0,
    cohort=2,
    uploads=0,
    offers_waiting=0,
    inbox_messages=0,
    cpu_s=1.0,
    rss_bytes=1,
    at=1000.0,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def run() -> Run:
    run = Run(replace(PLAN, cohort_size=2, min_devices=2))
    run.online("a", "b")
    return run


@pytest.fixture
def activities(run: Run) -> Activities:
    activities = Activities(clock=Clock())
    for device in "ab":
        activities.take(device, encode(Progress(run="r1", round=1, phase="train", step=1, steps=9)), run.state)
    return activities


def shown(run_dir: Path) -> tuple[str, list[str]]:
    reader = LiveReader.open(run_dir)
    assert reader is not None
    with closing(reader):
        present = reader.present()
        assert present is not None
        return present.sentence, list(reader.devices())


def test_readers_see_what_was_shown_and_who_is_gone(tmp_path: Path, activities: Activities, run: Run) -> None:
    with closing(LiveFile(tmp_path)) as live:
        live.show(PRESENT, activities)
        assert shown(tmp_path) == (PRESENT.sentence, ["a", "b"])
        run.deliver("a")
        activities.keep_only(run.state)
        live.show(PRESENT, activities)
        assert shown(tmp_path) == (PRESENT.sentence, ["b"])
        live.say("the coordinator waits for a lock")
        assert shown(tmp_path) == ("the coordinator waits for a lock", ["b"])
        live.end("the run has failed: nobody came")
    reader = LiveReader.open(tmp_path)
    assert reader is not None
    with closing(reader):
        present = reader.present()
    assert present is not None
    assert (present.stage, present.sentence) == ("over", "the run has failed: nobody came")


def test_a_lock_is_logged_once_and_left_alone_for_a_while(
    tmp_path: Path, activities: Activities, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.record.live.BUSY_TIMEOUT_S", 0.01)
    clock = Clock()
    with closing(LiveFile(tmp_path, clock=clock)) as live:
        live.show(PRESENT, activities)
        with closing(sqlite3.connect(tmp_path / LIVE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(5):
                live.show(replace(PRESENT, sentence="locked"), activities)
            other.execute("ROLLBACK")
        assert caplog.text.count("cannot write") == 1
        clock.now_s += RETRY_S
        live.show(replace(PRESENT, sentence="free again"), activities)
        assert shown(tmp_path) == ("free again", ["a", "b"])


def test_a_folder_that_cannot_be_written_is_logged_once(
    tmp_path: Path, activities: Activities, caplog: pytest.LogCaptureFixture
) -> None:
    clock, run_dir = Clock(), tmp_path / "absent"
    with closing(LiveFile(run_dir, clock=clock)) as live:
        for _ in range(3):
            clock.now_s += RETRY_S
            live.show(PRESENT, activities)
        assert caplog.text.count("the run goes on") == 1
        run_dir.mkdir()
        clock.now_s += RETRY_S
        live.show(PRESENT, activities)
        assert shown(run_dir) == (PRESENT.sentence, ["a", "b"])


def test_a_full_disk_is_logged_once(tmp_path: Path, activities: Activities, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with closing(LiveFile(tmp_path, clock=clock)) as live:
        live.show(PRESENT, activities)
        record = live._record
        assert record is not None
        # SQLite itself reports a full disk once its file may not grow.
        record._db.execute("PRAGMA max_page_count = 1")
        for _ in range(3):
            live.show(replace(PRESENT, sentence="x" * 100_000), activities)
    assert caplog.text.count("cannot write") == 1
    assert "full" in caplog.text


def test_costs_are_those_of_this_process_and_its_workers() -> None:
    alone, rss_bytes = own_costs(())
    assert alone > 0
    assert rss_bytes > 1_000_000
    assert own_costs((os.getpid(),))[0] > alone
    assert own_costs((2**22 + 1,))[0] >= alone, "a worker that is gone is no error"
