"""Refuses unsupported platforms in one sentence, before an import fails in a hundred lines."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from contextlib import suppress

from sparsyedge.edge.errors import ConfigError

__all__ = ["check_platform"]

OLDEST_PYTHON = (3, 11)
NEWEST_WITH_WHEEL = (3, 14)
"""The newest Python with onnxruntime wheels that we know of; later ones are not refused for that alone."""


OLDEST_RUNTIME = (1, 19)


def check_platform() -> None:
    """Raise ConfigError if onnxruntime has no wheel here or is too old: 32-bit systems, musl, some Python versions."""
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
    _check_runtime()


def _check_runtime() -> None:
    # By its metadata: an old one may not even import beside today's numpy.
    for package in ("onnxruntime", "onnxruntime-training"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.version(package)
            if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_RUNTIME:
                raise ConfigError(
                    f"{package} {found} is too old for our ops; sparsyedge needs {_dotted(OLDEST_RUNTIME)} or later: "
                    f"pip install --upgrade {package}"
                )


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
