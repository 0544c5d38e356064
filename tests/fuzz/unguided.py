"""One target with plain mutation: `python -m fuzz.unguided TARGET INPUTS LIMIT_S SEED`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType

from fuzz.mutation import altered
from fuzz.target import Target, target

HANG_S = 20.0
"""Of the processor's time, for one input."""


class Hang(BaseException):
    """An input takes too long; no handler of errors is meant to catch this."""


def run(what: Target, inputs: int, *, keep: Path, seed: int = 1, limit_s: float = float("inf")) -> int:
    """Try that many inputs, or as many as there is time for; returns their number.

    A finding is raised as it is, and its input is kept in the folder `keep`.
    """
    end_s = time.monotonic() + limit_s
    before = signal.signal(signal.SIGVTALRM, _hangs)
    count = 0
    try:
        for data in altered(what.corpus(), seed=seed, count=inputs):
            if time.monotonic() > end_s:
                break
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
            _check(what, data, keep)
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return count


def _check(what: Target, data: bytes, keep: Path) -> None:
    try:
        what.check(data)
    except BaseException as error:
        keep.mkdir(parents=True, exist_ok=True)
        path = keep / f"{what.name}-found"
        path.write_bytes(data)
        error.add_note(f"input of {len(data)} bytes kept in {path}")
        raise


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise Hang(f"an input took {HANG_S} s")


if __name__ == "__main__":
    name, inputs, limit_s, seed = sys.argv[1:]
    tried = run(target(name), int(inputs), keep=Path("build/fuzz"), seed=int(seed), limit_s=float(limit_s))
    print(f"{tried} inputs")
