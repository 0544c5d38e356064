"""`sparsyedge fleet`: what it refuses before it talks to anybody, and what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.releases import add_release
from fixtures.secured import make_member

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.commands.fleet_command import main
from sparsyedge.coordinator.commands.fleet_view import as_lines, heading
from sparsyedge.coordinator.rollout.plan import Progress, Rollout
from sparsyedge.coordinator.rollout.rollout_file import RolloutFile
from sparsyedge.edge.errors import ConfigError, DamagedFileError, RunError, SecurityError


def fleet(authority: Authority, *arguments: str) -> int:
    return main([*arguments, "--dir", str(authority.folder)])


def test_a_fleet_without_an_authority_is_told_why_it_cannot_be_upgraded(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="only a secured fleet can be upgraded over the air"):
        main(["update", "--wheelhouse", "wheels", "--dir", str(tmp_path)])


def test_there_must_be_a_rollout_to_go_on_with_or_to_take_back(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="no rollout to go on with"):
        fleet(authority, "update")
    for command in ("halt", "rollback"):
        with pytest.raises(RunError, match="there is no rollout"):
            fleet(authority, command)


@pytest.mark.parametrize("canary", ["0", "pi-77", "pi-01,pi-77", ","])
def test_canaries_must_be_a_number_or_members(authority: Authority, tmp_path: Path, canary: str) -> None:
    make_member(authority, "pi-01", tmp_path / "identity")
    wheelhouse = add_release(tmp_path / "wheels", "9.1")
    with pytest.raises(ConfigError, match="--canary is"):
        fleet(authority, "update", "--wheelhouse", str(wheelhouse), "--canary", canary)


def test_one_process_drives_a_rollout(authority: Authority) -> None:
    with RolloutFile(authority.folder).driving(), pytest.raises(RunError, match="another `sparsyedge fleet` drives"):
        fleet(authority, "update")


def test_a_request_reaches_the_process_that_drives_the_rollout(authority: Authority) -> None:
    file = RolloutFile(authority.folder)
    with file.driving():
        file.write(Rollout(fleet="lab", bundle="ab" * 32, software="9.1"))
        assert fleet(authority, "halt") == 0
        assert file.take_request() == "halt"
        assert file.take_request() is None


def test_a_damaged_state_is_one_sentence(authority: Authority) -> None:
    file = RolloutFile(authority.folder)
    file.folder.mkdir()
    (file.folder / "state.json").write_text('{"fleet": 7')
    with pytest.raises(DamagedFileError, match="remove it and start the rollout again"):
        fleet(authority, "update")


def test_the_status_names_version_stage_wave_and_reason_of_every_device() -> None:
    refused = Progress(
        online=True, software="sparsyedge 1.0", stage="refused", reason="too large", wave=0, alarm="forged"
    )
    rollout = Rollout(
        fleet="lab", bundle="ab" * 32, software="2.0", state="halted", reason="pi-01 failed", devices={"pi-01": refused}
    )
    lines = as_lines(rollout, width=80)
    assert lines[2].split() == ["pi-01", "1.0", "refused", "canary", "online"]
    assert lines[3:] == ["    too large", "    alarm: forged"]
    assert heading(rollout)[1] == "why: pi-01 failed"
