from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.wheelhouses import a_wheelhouse, add_wheel

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.wheelhouse import select


def test_a_board_gets_the_newest_of_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    chosen = {wheel.name: str(wheel.version) for wheel in select(a_wheelhouse(tmp_path / "house"), "3.13")}
    assert chosen == {
        "numpy": "2.0.0",
        "onnxruntime": "1.23.2",
        "pip": "25.1",
        "protobuf": "6.0",
        "sparsyedge": "0.1.0",
    }


def test_a_missing_wheel_for_the_boards_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlashError, match=r"no wheel of onnxruntime>=1.19.2 for Python 3.11 on 64-bit ARM; collect it"):
        select(a_wheelhouse(tmp_path / "house"), "3.11")


@pytest.mark.parametrize(
    "name",
    [
        "numpy-2.0.0-cp313-cp313-manylinux_2_17_x86_64.whl",
        "numpy-2.0.0-cp313-cp313-musllinux_1_2_aarch64.whl",
        "numpy-2.0.0-cp313-cp313-manylinux_2_99_aarch64.whl",
        "numpy-1.0.0-cp313-cp313-manylinux_2_17_aarch64.whl",
        "numpy-2.0.0-cp314-abi3-manylinux_2_17_aarch64.whl",
    ],
)
def test_wheels_for_other_boards_do_not_count(tmp_path: Path, name: str) -> None:
    house = a_wheelhouse(tmp_path / "house")
    (house / "numpy-2.0.0-cp313-cp313-manylinux_2_17_aarch64.manylinux2014_aarch64.whl").unlink()
    add_wheel(house, name)
    with pytest.raises(FlashError, match="no wheel of numpy"):
        select(house, "3.13")


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    house = a_wheelhouse(tmp_path / "house")
    (house / "notes.whl").write_bytes(b"")
    with pytest.raises(FlashError, match=r"notes.whl is not named like a wheel"):
        select(house, "3.13")
    (house / "notes.whl").unlink()
    (house / "pip-26.0-py3-none-any.whl").write_bytes(b"not a zip file")
    with pytest.raises(FlashError, match="is not a readable wheel"):
        select(house, "3.13")
