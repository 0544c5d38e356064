"""Where sparsyedge can run: refused in one sentence elsewhere, before an import fails in a hundred lines."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys

from sparsyedge.edge.errors import ConfigError

__all__ = ["check_platform"]

OLDEST_PYTHON = (3, 11)
NEWEST_WITH_WHEEL = (3, 14)
"""The newest Python that onnxruntime has wheels for, as far as is known here; a later one is not refused for that."""


def check_platform() -> None:
    """Raise ConfigError where there is no onnxruntime: 32-bit systems, musl, and Pythons that have no wheel of it."""
    machine, version = platform.machine(), sys.version_info[:2]
    if sys.maxsize <= 2**32:
        raise ConfigError(
            f"sparsyedge needs a 64-bit system, this Python is a 32-bit one (on {machine}), for which there is no "
            f"onnxruntime; install the 64-bit Raspberry Pi OS"
        )
    if sys.platform == "linux" and not _has_glibc():
        raise ConfigError(
            "sparsyedge needs glibc, this system has another C library (musl, as Alpine has), for which there is no "
            "onnxruntime; use Debian, Ubuntu or Raspberry Pi OS"
        )
    if version < OLDEST_PYTHON or (version > NEWEST_WITH_WHEEL and importlib.util.find_spec("onnxruntime") is None):
        raise ConfigError(
            f"this is Python {_dotted(version)}, for which there is no onnxruntime on {machine}; use Python "
            f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_WITH_WHEEL)}"
        )


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
