"""Refuses unsupported platforms in one sentence, before an import fails in a hundred lines."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys

from sparsyedge.edge.errors import ConfigError

__all__ = ["check_platform"]

OLDEST_PYTHON = (3, 11)
NEWEST_WITH_WHEEL = (3, 14)
"""The newest Python with onnxruntime wheels that we know of; later ones are not refused for that alone."""


def check_platform() -> None:
    """Raise ConfigError if onnxruntime has no wheel here: 32-bit systems, musl, and some Python versions."""
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
