"""A coordinator's service, judged by systemd's own tools, and as systemd would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sparsyedge.coordinator.commands import coordinator_command
from sparsyedge.coordinator.commands.service_unit import Service, unit_text
from sparsyedge.edge.errors import ConfigError

NEEDS_SYSTEMD = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here: apt-get install systemd"
)
SAFE_ENOUGH = 2.5
"""systemd's own score is 0 for nothing exposed to 10; it calls 2.5 OK. Network access alone costs 0.5."""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "artifacts").mkdir()
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "digits"\nartifacts = "artifacts"\nrun_dir = "runs/digits"\ndataset = "digits"\nrounds = 3\n'
        "cohort_size = 2\n[learning_rate]\nstart = 0.1\nend = 0.1\n"
    )
    return path


def service(**changes: object) -> Service:
    values: dict[str, object] = {
        "run": "digits",
        "user": "daemon",
        "python": Path("/usr/bin/python3"),
        "config": Path("/srv/fl/run.toml"),
        "writable": (Path("/srv/fl/runs"),),
        "readable": (),
    }
    return Service(**{**values, **changes})  # type: ignore[arg-type]


@NEEDS_SYSTEMD
def test_systemd_finds_no_fault_with_the_unit_and_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "sparsyedge-coordinator-digits.service"
    for folder in ("/srv/fl", "/srv/a b/50%/$HOME"):
        unit.write_text(unit_text(service(config=Path(folder) / "run.toml", writable=(Path(folder) / "runs",))))
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (checked.returncode, checked.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    assert found, judged.stdout
    assert float(found.group(1)) <= SAFE_ENOUGH, judged.stdout


@NEEDS_SYSTEMD
def test_a_service_is_installed_below_another_root_and_removed_again(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.commands.service_unit.PRIVATE", ())
    root = tmp_path / "root"
    unit = root / "etc/systemd/system/sparsyedge-coordinator-digits.service"
    arguments = [str(run_file), "--root", str(root)]
    assert coordinator_command.main(["install", *arguments, "--user", "nobody"]) == 0
    text = unit.read_text()
    assert f"coordinator run --service {run_file}" in text
    # The run's folder does not exist yet; the service may make it.
    assert f"ReadWritePaths={tmp_path}\n" in text
    assert (unit.parent / "multi-user.target.wants" / unit.name).is_symlink()
    assert coordinator_command.main(["uninstall", *arguments]) == 0
    assert not unit.exists()
    assert not (unit.parent / "multi-user.target.wants" / unit.name).is_symlink()
    with pytest.raises(ConfigError, match="there is no service"):
        coordinator_command.main(["uninstall", *arguments])


def test_a_unit_is_printed_without_a_system(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.commands.service_unit.PRIVATE", ())
    assert coordinator_command.main(["install", str(run_file), "--user", "nobody", "--print"]) == 0
    assert capsys.readouterr().out.startswith("# Made by `sparsyedge coordinator install`")


@pytest.mark.skipif(os.getuid() != 0, reason="only root's files belong to root")
def test_a_roots_run_needs_the_name_of_a_user(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to root, and a coordinator needs no root"):
        coordinator_command.main(["install", str(run_file), "--print"])


def test_what_a_service_could_not_use_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="there is no user 'nobody-of-this-name'"):
        coordinator_command.main(["install", str(run_file), "--user", "nobody-of-this-name", "--print"])
    with pytest.raises(ConfigError, match="it has its own /tmp"):
        unit_text(service(config=Path("/tmp/run.toml")))
    with pytest.raises(ConfigError, match="cannot be in a unit"):
        unit_text(service(writable=(Path("/srv/a\nExecStart=/bin/sh"),)))


def test_homes_are_shut_unless_something_is_in_one() -> None:
    assert "ProtectHome=yes" in unit_text(service())
    assert "ProtectHome=read-only" in unit_text(service(readable=(Path("/home/ada/data"),)))
