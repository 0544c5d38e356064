"""Shared by this folder's build commands: prints errors in plain words, and how long the build took."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["run_build"]


def run_build(build: Callable[[], str]) -> int:
    """Run the build, print the sentence it returns and the time it took; returns the exit code."""
    start_s = time.monotonic()
    try:
        sentence = build()
    except SparsyedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {error}; what it printed is above", file=sys.stderr)
        return 1
    print(f"{sentence}, made in {time.monotonic() - start_s:.0f} s")
    return 0
