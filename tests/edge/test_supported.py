"""Systems without an onnxruntime are told so in one sentence."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path

import pytest

from sparsyedge.edge import cli
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.supported import check_platform


def test_this_machine_is_supported() -> None:
    check_platform()


def test_32_bit_system_is_refused_whatever_its_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    monkeypatch.setattr(platform, "machine", lambda: "armv7l")
    with pytest.raises(ConfigError, match=r"64-bit system, this Python is a 32-bit one \(on armv7l\)"):
        check_platform()


def test_musl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown)
    with pytest.raises(ConfigError, match=r"needs glibc, this system has another C library \(musl"):
        check_platform()


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 15, 0)])
def test_python_without_a_wheel_of_onnxruntime_is_refused(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"no onnxruntime on aarch64; use Python 3\.11 to 3\.14"):
        check_platform()


def test_newer_python_that_has_an_onnxruntime_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    check_platform()


def test_device_on_such_a_system_ends_with_the_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    assert cli.main(["edge", "--config", "device.toml"]) == cli.EXIT_FAULT
    assert "needs a 64-bit system" in capsys.readouterr().err


def test_an_old_onnxruntime_ends_a_command_with_the_sentence_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.9.1")
    assert cli.main(["export", "--dataset", "digits", "--out", str(tmp_path / "out")]) == cli.EXIT_FAULT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "sparsyedge: error: onnxruntime 1.9.1 is too old for our ops; sparsyedge needs 1.19 or later"
    )
    assert not list(tmp_path.iterdir())


def test_an_old_python_ends_a_command_with_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert cli.main(["export", "--dataset", "digits", "--out", str(tmp_path / "out")]) == cli.EXIT_FAULT
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is Python 3.10" in line
    assert not list(tmp_path.iterdir())
