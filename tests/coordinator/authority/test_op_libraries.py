"""The op libraries of a fleet's devices: recorded once each from wheels, and listed for signing."""

from __future__ import annotations

import hashlib
import multiprocessing
import zipfile
from pathlib import Path

import pytest

from sparsyedge.coordinator.authority.op_libraries import LIBRARIES_NAME, known_libraries, platform_of, record
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.edge.errors import ArtifactError, SecurityError
from sparsyedge.edge.model.artifacts import OpLibrary
from sparsyedge.edge.native import LIBRARY_NAME, library_path

AARCH64 = 183


def elf(machine: int, content: bytes = b"") -> bytes:
    """The header of a shared library for that machine."""
    return (b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little")).ljust(64, b"\0") + content


def make_wheel(folder: Path, library: bytes, name: str = "sparsyedge-0.1.0-py3-none-any.whl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(f"sparsyedge/edge/native/{LIBRARY_NAME}", library)
    return folder / name


def test_a_wheel_is_recorded_once_by_platform_and_hash(tmp_path: Path) -> None:
    library = elf(AARCH64)
    wheel = make_wheel(tmp_path / "dist", library)
    assert known_libraries(tmp_path) == ()
    assert [one.wheel for one in record(tmp_path, [wheel])] == [wheel.name]
    assert record(tmp_path, [wheel, wheel]) == ()
    assert known_libraries(tmp_path) == (OpLibrary("linux-aarch64", hashlib.sha256(library).hexdigest()),)


def test_of_a_wheelhouse_our_own_wheel_counts(tmp_path: Path) -> None:
    wheelhouse = make_wheel(tmp_path / "wheels", elf(AARCH64)).parent
    (wheelhouse / "numpy-2.0.0-cp311-cp311-manylinux_2_17_aarch64.whl").write_bytes(b"not looked into")
    assert [library.platform for library in record(tmp_path, [wheelhouse])] == ["linux-aarch64"]


def test_every_platform_of_a_fleet_is_kept(tmp_path: Path) -> None:
    record(tmp_path, [make_wheel(tmp_path / "a", elf(AARCH64))])
    record(tmp_path, [make_wheel(tmp_path / "b", elf(AARCH64, b"newer")), library_path()])
    platforms = [library.platform for library in known_libraries(tmp_path)]
    assert platforms == sorted(["linux-aarch64", "linux-aarch64", platform_of(library_path().read_bytes())])


def _record_wheel(folder: Path, wheel: Path) -> None:
    record(folder, [wheel])


def test_two_that_flash_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / str(number), elf(AARCH64, bytes([number]))) for number in range(8)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_record_wheel, args=(tmp_path, wheel)) for wheel in wheels]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(known_libraries(tmp_path)) == len(wheels)


def test_what_is_no_wheel_of_ours_is_refused_and_nothing_recorded(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for source, reason in (
        (make_wheel(tmp_path / "w", b"no library"), "holds no op library"),
        (empty, "no wheel of sparsyedge"),
        (tmp_path / "absent.whl", "no wheel or op library"),
    ):
        with pytest.raises(ArtifactError, match=reason):
            record(tmp_path, [make_wheel(tmp_path / "good", elf(AARCH64)), source])
    assert known_libraries(tmp_path) == ()


def test_a_damaged_record_says_how_to_mend_it(tmp_path: Path) -> None:
    (tmp_path / LIBRARIES_NAME).write_bytes(b'[{"platform": "linux-aarch64", "sha256": "short", "wheel": ""}]')
    with pytest.raises(SecurityError, match="coordinator library WHEEL --dir"):
        known_libraries(tmp_path)


def test_the_command_records_lists_and_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "fleet", "--host", "nas.lan"]) == 0
    wheel = make_wheel(tmp_path / "dist", elf(AARCH64))
    sha256 = hashlib.sha256(elf(AARCH64)).hexdigest()

    def says(*words: str) -> str:
        capsys.readouterr()
        assert main(["library", *words]) == 0
        return capsys.readouterr().out

    assert "no op library of a device is on record" in says()
    told = says(str(wheel))
    assert f"recorded: linux-aarch64 {sha256[:12]}... of {wheel.name}" in told
    assert "sparsyedge coordinator sign ARTIFACTS --dir fleet" in told
    assert says(str(wheel)) == says() == f"on record: linux-aarch64 {sha256[:12]}... of {wheel.name}\n"
    with pytest.raises(ArtifactError, match="0 recorded op libraries"):
        main(["library", "--forget", "f" * 64 if sha256[0] != "f" else "0" * 64])
    assert "forgotten: linux-aarch64" in says("--forget", sha256[:12])
    assert known_libraries(tmp_path / "fleet") == ()
