"""Backups of a run under way and of a fleet, and what becomes of them on an empty disk."""

from __future__ import annotations

import io
import stat
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.scripted_fleet import Fleet

from sparsyedge.coordinator import backup as backup_module
from sparsyedge.coordinator.authority.authority import Authority, Settings
from sparsyedge.coordinator.backup import make_backup, restore_backup
from sparsyedge.coordinator.commands import coordinator_command
from sparsyedge.coordinator.config import load_run_config
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.messages import Accepted


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.init(tmp_path / "authority", Settings(hosts=("localhost",), fleet="lab"))


@pytest.mark.mosquitto
def test_a_run_that_is_restored_in_the_middle_of_a_round_ends_in_the_same_model(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.start(cohort_size=2)
    d1, d2 = fleet.join("d1", "d2")
    for device in (d1, d2):
        assert isinstance(device.deliver(device.until_round(1)), Accepted)
    assert isinstance(d1.deliver(d1.until_round(2)), Accepted)

    # One update of round 2 is in, the other is awaited.
    out = tmp_path / "backup.tar"
    contents = make_backup(out, fleet=None, run_dirs=(fleet.config.run_path,))
    assert [(entry.name, entry.closed_round) for entry in contents.runs] == [("r1", 1)]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert not list(fleet.config.run_path.glob(".backup*"))
    assert isinstance(d2.deliver(d2.until_round(2)), Accepted)
    expected = run.result().rounds[-1].model_id

    _, (run_file,) = restore_backup(out, tmp_path / "elsewhere")
    config = load_run_config(run_file)
    assert config.run_path == tmp_path / "elsewhere" / "runs" / "0" / "run"
    with closing(Store.open(config.run_path)) as store:
        assert store.progress().closed_round == 1
    for device in (d1, d2):
        device.task = None
    run = fleet.start(run_dir=config.run_dir, artifacts=config.artifacts)
    assert isinstance(d2.deliver(d2.until_round(2)), Accepted)
    assert run.result().rounds[-1].model_id == expected


@pytest.mark.mosquitto
def test_a_round_that_closes_during_a_backup_makes_it_begin_again(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    first = device.until_round(1)
    copied: list[int] = []

    def copy_late(source: Path, target: Path) -> None:
        if not copied:
            assert isinstance(device.deliver(first), Accepted)
            device.until_round(2)
        copied.append(1)
        copy_database(source, target)

    copy_database = backup_module.copy_database
    monkeypatch.setattr(backup_module, "copy_database", copy_late)
    contents = make_backup(tmp_path / "backup.tar", fleet=None, run_dirs=(fleet.config.run_path,))
    assert (len(copied), contents.runs[0].closed_round) == (2, 1)
    assert "runs/0/run/models/2.model" in {entry.path for entry in contents.files}
    assert isinstance(device.deliver(device.until_round(2)), Accepted)
    run.result()


def test_a_restored_authority_has_its_keys_its_ledger_and_a_broker_that_finds_them(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.invite("pi-01")
    out = tmp_path / "backup.tar"
    assert coordinator_command.main(["backup", str(out), "--fleet", str(authority.folder)]) == 0
    assert "it holds private keys" in capsys.readouterr().out
    assert coordinator_command.main(["restore", str(out), str(tmp_path / "new")]) == 0
    restored = Authority.open(tmp_path / "new" / "fleet")
    assert restored.signing_key == authority.signing_key
    for name in ("ca.key", "signing.key", "server.key", "coordinator.key"):
        assert (restored.folder / name).read_bytes() == (authority.folder / name).read_bytes()
        assert stat.S_IMODE((restored.folder / name).stat().st_mode) == 0o600
    with restored.ledger() as ledger:
        assert list(ledger.token_hashes()) == ["pi-01"]
    conf = (restored.folder / "mosquitto.conf").read_text()
    assert f"keyfile {restored.folder}/server.key" in conf
    assert str(authority.folder) not in conf


def test_a_backup_never_overwrites_and_never_mixes(authority: Authority, tmp_path: Path) -> None:
    out = tmp_path / "backup.tar"
    with pytest.raises(RunError, match="nothing to back up"):
        make_backup(out, fleet=None, run_dirs=())
    make_backup(out, fleet=authority.folder, run_dirs=())
    with pytest.raises(RunError, match="exists already"):
        make_backup(out, fleet=authority.folder, run_dirs=())
    with pytest.raises(RunError, match="is not empty"):
        restore_backup(out, authority.folder)
    with pytest.raises(RunError, match="no run in"):
        make_backup(tmp_path / "other.tar", fleet=None, run_dirs=(authority.folder,))
    assert not (tmp_path / "other.tar").exists()


def rewritten(content: bytes, change: str) -> bytes:
    """The archive with one thing about it altered."""
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=target, mode="w") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name == "fleet/ca.pem" and change == "left out":
                continue
            if member.name == "fleet/ca.pem" and change == "altered":
                data = data.replace(b"A", b"B", 1)
            if member.name == "fleet/ca.pem" and change in ("climbing", "link"):
                member.name = "fleet/../../climbed" if change == "climbing" else member.name
                member.type = tarfile.SYMTYPE if change == "link" else member.type
                member.linkname = "/etc/passwd"
            if member.name == "backup.json" and change == "added":
                extra = tarfile.TarInfo("fleet/extra")
                new.addfile(extra, io.BytesIO())
            new.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return target.getvalue()


@pytest.mark.parametrize("change", ["left out", "altered", "climbing", "link", "added", "cut", "no archive"])
def test_a_backup_that_is_not_whole_is_refused_and_leaves_nothing(
    change: str, authority: Authority, tmp_path: Path
) -> None:
    out, place = tmp_path / "backup.tar", tmp_path / "below" / "new"
    make_backup(out, fleet=authority.folder, run_dirs=())
    content = out.read_bytes()
    if change == "cut":
        out.write_bytes(content[: len(content) // 2])
    elif change == "no archive":
        out.write_bytes(b"words" * 1000)
    else:
        out.write_bytes(rewritten(content, change))
    with pytest.raises(RunError, match=r"backup"):
        restore_backup(out, place)
    assert not place.exists()
    assert list(place.parent.iterdir()) == []
    assert not (tmp_path / "climbed").exists()
