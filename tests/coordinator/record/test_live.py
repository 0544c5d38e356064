"""The live record: what a run is doing right now."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sparsyedge.coordinator.record.live import LIVE_NAME, DeviceActivity, LiveReader, LiveRecord, Present

ACTIVITY = DeviceActivity(
    device="pi-03",
    round=7,
    phase="train",
    step=120,
    steps=310,
    loss=0.7,
    temperature_c=61.5,
    battery_percent=None,
    at=1000.0,
)
PRESENT = Present(
    round=7,
    stage="open",
    sentence="round 7 waits for 1 of 10 devices",
    until=1300.0,
    online=10,
    accepted=9,
    cohort=10,
    uploads=1,
    offers_waiting=0,
    inbox_messages=3,
    cpu_s=12.5,
    rss_bytes=100_000_000,
    at=1001.0,
)


def read(run_dir: Path) -> tuple[Present | None, dict[str, DeviceActivity]]:
    reader = LiveReader.open(run_dir)
    assert reader is not None
    with closing(reader):
        return reader.present(), reader.devices()


def test_a_reader_sees_what_was_flushed(tmp_path: Path) -> None:
    with closing(LiveRecord(tmp_path)) as live:
        live.note(ACTIVITY)
        assert read(tmp_path) == (None, {})
        live.flush(PRESENT)
        assert read(tmp_path) == (PRESENT, {"pi-03": ACTIVITY})


def test_only_the_last_word_of_a_device_counts(tmp_path: Path) -> None:
    later = replace(ACTIVITY, step=200, at=1005.0)
    with closing(LiveRecord(tmp_path)) as live:
        live.note(ACTIVITY)
        live.flush(PRESENT)
        live.note(later)
        live.flush(PRESENT)
        assert read(tmp_path)[1] == {"pi-03": later}


def test_a_device_that_left_is_forgotten(tmp_path: Path) -> None:
    with closing(LiveRecord(tmp_path)) as live:
        live.note(ACTIVITY)
        live.flush(PRESENT)
        live.forget("pi-03")
        live.flush(PRESENT)
        assert read(tmp_path)[1] == {}


def test_a_new_coordinator_begins_a_new_record(tmp_path: Path) -> None:
    with closing(LiveRecord(tmp_path)) as live:
        live.note(ACTIVITY)
        live.flush(PRESENT)
    with closing(LiveRecord(tmp_path)):
        assert read(tmp_path) == (None, {})


def test_a_run_without_a_live_record_has_none(tmp_path: Path) -> None:
    assert LiveReader.open(tmp_path) is None


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / LIVE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(Exception, match=r"live record .*damaged"):
        LiveReader.open(tmp_path)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    with closing(LiveRecord(tmp_path)):
        assert (tmp_path / LIVE_NAME).stat().st_mode & 0o777 == 0o600
