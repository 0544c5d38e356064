"""What `status` and `devices` show of a run that is under way."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.commands.live_view import FRESH_S, describe_present, subject_of
from sparsyedge.coordinator.record.live import LIVE_NAME, DeviceActivity, LiveRecord, Present
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.protocol.messages import DeviceStatus

ACTIVITY = DeviceActivity(
    device="pi-03",
    round=2,
    phase="train",
    step=120,
    steps=310,
    loss=0.70712,
    temperature_c=61.54,
    battery_percent=80.0,
    at=1000.0,
)
SENTENCE = "round 2 waits for 1 of 1 devices: pi-03 (training, step 120 of 310, about 4 min); it needs 1 more by 14:05"


def present(at: float) -> Present:
    return Present(
        round=2,
        stage="open",
        sentence=SENTENCE,
        until=at + 60.0,
        online=1,
        accepted=0,
        cohort=1,
        uploads=0,
        offers_waiting=0,
        inbox_messages=0,
        cpu_s=1.0,
        rss_bytes=1,
        at=at,
    )


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in its second round, with a device that trains."""
    monkeypatch.setenv("COLUMNS", "200")
    with closing(Store.create(tmp_path, name="r1", fleet="lab", rounds=8, dense_bytes=1000, config="{}")) as store:
        for device in ("pi-03", "pi-04"):
            store.note_device(device, DeviceStatus(state="online", boot_id="x"))
        store.open_round(2, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=("pi-03",))
    with closing(LiveRecord(tmp_path)) as live:
        live.note(ACTIVITY)
        live.flush(present(time.time()))
    return tmp_path


@pytest.mark.parametrize("command", ["status", "devices"])
def test_a_run_says_what_it_waits_for(command: str, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(run_dir)]) == 0
    assert SENTENCE in capsys.readouterr().out


def test_devices_shows_phase_step_and_figures_of_who_works(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["devices", str(run_dir)])
    lines = capsys.readouterr().out.splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith("pi-03 "))
    assert lines[number + 1] == "    training, step 120 of 310, loss 0.7071, 61.5 C, battery 80 %"
    assert lines[number + 2].startswith("pi-04 ")


def test_json_has_the_same(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["devices", "--json", str(run_dir)])
    activities = {view["device"]: view["activity"] for view in json.loads(capsys.readouterr().out)["devices"]}
    assert activities["pi-03"]["step"] == 120
    assert activities["pi-04"] is None
    main(["status", "--json", str(run_dir)])
    assert json.loads(capsys.readouterr().out)["present"]["sentence"] == SENTENCE


@pytest.mark.parametrize("command", ["status", "devices"])
def test_a_run_that_is_over_waits_for_nothing(command: str, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Store.open(run_dir)) as store:
        store.end_run("stopped")
    main([command, str(run_dir)])
    assert "step 120" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, b"", b"this is no database" * 100])
@pytest.mark.parametrize("command", ["status", "devices"])
def test_without_a_live_record_the_rest_is_shown(
    command: str, content: bytes | None, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / LIVE_NAME).unlink()
    if content is not None:
        (run_dir / LIVE_NAME).write_bytes(content)
    assert main([command, str(run_dir)]) == 0
    assert "run r1 of fleet lab: running" in capsys.readouterr().out


def test_an_old_sentence_is_shown_with_its_age() -> None:
    now = time.time()
    assert describe_present(present(now)) == [SENTENCE]
    assert describe_present(present(now - 400.0)) == [f"{SENTENCE} (said 7 min ago)"]
    assert describe_present(present(now - FRESH_S / 2)) == [SENTENCE]
    assert describe_present(None) == []


def test_a_step_alone_is_another_sentence_about_the_same() -> None:
    now = present(1000.0)
    later = replace(now, sentence=SENTENCE.replace("120", "150"))
    assert subject_of(now) == subject_of(later)
    assert subject_of(now) != subject_of(replace(now, sentence="round 3 waits for 1 more device"))
