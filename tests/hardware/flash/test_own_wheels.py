"""Where a card's wheels come from when nobody names a wheelhouse: this checkout or this wheel."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.wheelhouses import a_wheelhouse_for_all, add_wheel

from sparsyedge.edge.errors import FlashError, SparsyedgeError
from sparsyedge.hardware.flash.own_wheel import own_wheel
from sparsyedge.hardware.flash.wheel_cache import KEPT, kept_wheelhouse

NAME = "sparsyedge-0.1.0-py3-none-manylinux_2_34_aarch64.whl"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder laid out like the repository, with a wheel that was built after its sources were written."""
    folder = tmp_path / "checkout"
    for name in ("pyproject.toml", "CMakeLists.txt", "edge/native/op.cc", "hardware/flash/card/firstboot.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
        os.utime(folder / name, (1_000_000, 1_000_000))
    (folder / "dist").mkdir()
    os.utime(add_wheel(folder / "dist", NAME), (2_000_000, 2_000_000))
    return folder


def wheel_of(folder: Path | None, *, installed: Path | None = None, said: list[str] | None = None) -> Path:
    return own_wheel(checkout=folder, installed=installed, say=(said if said is not None else []).append)


def test_a_wheel_that_is_newer_than_every_source_is_taken(checkout: Path) -> None:
    assert wheel_of(checkout) == checkout / "dist" / NAME


@pytest.mark.parametrize("source", ["pyproject.toml", "edge/native/op.cc", "hardware/flash/card/firstboot.sh"])
def test_a_source_that_changed_means_another_build(
    checkout: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(checkout / source, (3_000_000, 3_000_000))
    monkeypatch.setenv("PATH", str(checkout))
    said: list[str] = []
    with pytest.raises(
        SparsyedgeError, match=r"no aarch64-linux-gnu-g\+\+ here; on Debian: apt-get install g\+\+-aarch"
    ):
        wheel_of(checkout, said=said)
    assert said == [f"cross-compiling sparsyedge for 64-bit ARM in {checkout}, which takes a minute or more"]


def test_caches_of_python_do_not_count_as_sources(checkout: Path) -> None:
    (checkout / "edge" / "__pycache__").mkdir()
    (checkout / "edge" / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"")
    assert wheel_of(checkout) == checkout / "dist" / NAME


def test_an_installation_from_a_wheel_for_arm_uses_that_wheel(checkout: Path) -> None:
    wheel = checkout / "dist" / NAME
    assert wheel_of(None, installed=wheel) == wheel


def test_without_sources_the_way_to_a_wheel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x86 = add_wheel(tmp_path, "sparsyedge-0.1.0-py3-none-manylinux_2_34_x86_64.whl")
    for installed in (None, x86):
        with pytest.raises(
            FlashError, match=r"in a checkout, run `make wheel-aarch64` and then here `sparsyedge flash"
        ):
            wheel_of(None, installed=installed)
    found = add_wheel(tmp_path / "dist", NAME)
    assert wheel_of(None, installed=x86) == found.relative_to(tmp_path)


# ---- the wheelhouse that is kept -------------------------------------------------------------------------------------


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], tuple[Path, list[str]]]:
    """Makes or finds the wheelhouse of a wheel; pip finds what that needs in a folder, and asks no index."""
    index = a_wheelhouse_for_all(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def kept(wheel: Path) -> tuple[Path, list[str]]:
        said: list[str] = []
        return kept_wheelhouse(tmp_path / "cache", wheel=lambda: wheel, say=said.append), said

    return kept


def built(folder: Path, *requires: str) -> Path:
    return add_wheel(folder, NAME, "numpy>=1.26", "onnxruntime>=1.19.2", *requires)


@pytest.mark.heavy
def test_a_wheelhouse_is_collected_once_and_then_reused(
    tmp_path: Path, keep: Callable[[Path], tuple[Path, list[str]]]
) -> None:
    wheel = built(tmp_path / "dist")
    folder, said = keep(wheel)
    assert "collecting what" in said[0]
    assert "7 for Python 3.11 and 3.13" in said[1]
    assert (folder / NAME).read_bytes() == wheel.read_bytes()
    again, said = keep(wheel)
    assert again == folder
    assert said == [f"wheels: {folder}, up to date with {wheel}"]
    (folder / "pip-25.1-py3-none-any.whl").unlink()
    again, said = keep(wheel)
    assert "collecting" in said[0]
    assert (again / "pip-25.1-py3-none-any.whl").is_file()


@pytest.mark.heavy
def test_another_wheel_of_ours_has_a_wheelhouse_of_its_own_and_old_ones_go(
    tmp_path: Path, keep: Callable[[Path], tuple[Path, list[str]]]
) -> None:
    old = [tmp_path / "cache" / f"0.0.{number}-{number:012x}" for number in range(KEPT)]
    for number, folder in enumerate(old):
        folder.mkdir(parents=True)
        os.utime(folder, (1_000_000 + number, 1_000_000 + number))
    new, _ = keep(built(tmp_path / "dist"))
    assert [folder.exists() for folder in (*old, new)] == [False, *[True] * KEPT]


def test_what_cannot_be_collected_leaves_nothing(
    tmp_path: Path, keep: Callable[[Path], tuple[Path, list[str]]]
) -> None:
    with pytest.raises(FlashError, match=r"pip could not download the wheels for Python 3\.11 .*; check the network"):
        keep(built(tmp_path / "dist", "no-such-package"))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]
