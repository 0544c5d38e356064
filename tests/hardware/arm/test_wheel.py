"""What the wheel for 64-bit ARM promises, and that the promise is read off the libraries themselves."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from fixtures.repository import REPOSITORY
from packaging.requirements import Requirement

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.native import codec_path, library_path
from sparsyedge.hardware.arm import wheel as arm_wheel
from sparsyedge.hardware.arm.requirements import requirements
from sparsyedge.hardware.arm.tree import build
from sparsyedge.hardware.arm.wheel import check_wheel, version_needs

PYPROJECT = REPOSITORY / "pyproject.toml"


@pytest.fixture
def foreign_wheel(tmp_path: Path) -> Path:
    """A wheel for ARM in name only: the library in it is this machine's."""
    path = tmp_path / "sparsyedge-0-py3-none-manylinux_2_34_aarch64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(codec_path(), "sparsyedge/edge/native/libsparsyedge_codec.so")
    return path


def test_needs_of_a_library_name_the_newest_version_of_each_system_library() -> None:
    needs = version_needs(library_path())
    assert (2, 2) < needs["GLIBC"] < (3, 0)
    assert needs["GLIBCXX"] > (3, 4)


def test_library_for_another_processor_is_refused(foreign_wheel: Path) -> None:
    with pytest.raises(ConfigError, match=r"libsparsyedge_codec\.so is not for AArch64"):
        check_wheel(foreign_wheel)


def test_wheel_is_checked_against_the_platform_of_its_name(tmp_path: Path) -> None:
    for platform in ("manylinux_2_34_x86_64", "linux_x86_64"):
        with zipfile.ZipFile(tmp_path / f"sparsyedge-0-py3-none-{platform}.whl", "w") as archive:
            archive.write(codec_path(), "sparsyedge/edge/native/libsparsyedge_codec.so")
    needs = check_wheel(tmp_path / "sparsyedge-0-py3-none-manylinux_2_34_x86_64.whl")
    assert needs["libsparsyedge_codec.so"]["GLIBC"] <= (2, 34)
    with pytest.raises(ConfigError, match="is for the platform linux_x86_64, allowed are manylinux_2_34_aarch64, "):
        check_wheel(tmp_path / "sparsyedge-0-py3-none-linux_x86_64.whl")


def test_library_that_needs_more_than_the_tag_promises_is_refused(
    foreign_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readelf = arm_wheel._readelf
    monkeypatch.setattr(arm_wheel, "_readelf", lambda *args: readelf(*args) + "AArch64\n Name: GLIBC_2.35  Flags: none")
    with pytest.raises(ConfigError, match=r"needs GLIBC_2\.35, manylinux_2_34_aarch64 promises 2\.34"):
        check_wheel(foreign_wheel)


def test_wheel_with_results_of_benchmarks_is_refused(foreign_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_wheel, "_check_library", lambda *of_another_processor: None)
    check_wheel(foreign_wheel)
    with zipfile.ZipFile(foreign_wheel, "a") as archive:
        archive.writestr("sparsyedge/benchmarks/results/paper/one.json", "{}")
    with pytest.raises(ConfigError, match="holds 1 files of benchmarks/results"):
        check_wheel(foreign_wheel)


def test_wheel_without_a_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.whl"
    zipfile.ZipFile(path, "w").close()
    with pytest.raises(ConfigError, match="holds no native library"):
        check_wheel(path)


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_device_on_arm_asks_for_the_stock_runtime_and_no_torch(python: str) -> None:
    names = {Requirement(line).name for line in requirements(PYPROJECT, python=python)}
    assert {"onnxruntime", "numpy", "msgspec", "paho-mqtt"} <= names
    assert not names & {"onnxruntime-training", "onnx", "torch"}


def test_tree_is_not_built_over_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists; remove it"):
        build(tmp_path, None)


def test_suite_without_a_known_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="suite is 'buster', allowed are bookworm, trixie"):
        build(tmp_path / "tree", None, suite="buster")
