import ctypes
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from sparsyedge.edge import native
from sparsyedge.edge.errors import ArtifactError


def test_library_path_is_absolute_and_exists() -> None:
    path = native.library_path()
    assert path.is_absolute()
    assert path.is_file()


def test_missing_library_is_reported_with_the_command_that_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY_NAME", "libnot_built.so")
    with pytest.raises(ArtifactError, match=r"libnot_built\.so is not part of this installation.*make setup"):
        native.library_path()


def binutil(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed; it comes with the compiler (package binutils)")
    return subprocess.run([*command, str(native.library_path())], capture_output=True, text=True, check=True).stdout


def test_a_single_symbol_is_exported() -> None:
    symbols = [line.split()[-1] for line in binutil("nm", "-D", "--defined-only").splitlines()]
    assert symbols == ["RegisterCustomOps"]


def test_library_needs_neither_onnxruntime_nor_python() -> None:
    needed = [line for line in binutil("readelf", "-d").splitlines() if "(NEEDED)" in line]
    assert needed
    assert not [line for line in needed if "onnxruntime" in line or "python" in line]


GetApi = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GetVersionString = ctypes.CFUNCTYPE(ctypes.c_void_p)
CreateStatus = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class OrtApiBase(ctypes.Structure):
    _fields_ = [("get_api", GetApi), ("get_version_string", GetVersionString)]


def register_with(get_api: Callable[[int], Any]) -> int | None:
    """What RegisterCustomOps returns in a runtime with this GetApi: a status, or None for success."""
    register = ctypes.CDLL(str(native.library_path())).RegisterCustomOps
    register.restype = ctypes.c_void_p
    version = ctypes.create_string_buffer(b"1.18.0")
    base = OrtApiBase(GetApi(get_api), GetVersionString(lambda: ctypes.addressof(version)))
    status: int | None = register(None, ctypes.byref(base))
    return status


def test_a_runtime_that_is_too_old_is_told_so() -> None:
    messages: list[bytes] = []

    def create_status(code: int, message: bytes) -> int:
        messages.append(message)
        return 4711

    first_slot = CreateStatus(create_status)
    table = (ctypes.c_void_p * 1)(ctypes.cast(first_slot, ctypes.c_void_p))
    status = register_with(lambda version: ctypes.addressof(table) if version < 19 else None)
    assert status == 4711
    assert messages == [b"the sparsyedge ops need ONNX Runtime 1.19 or newer, this one is 1.18.0"]


def test_a_runtime_without_any_api_does_not_crash() -> None:
    assert register_with(lambda version: None) is None
