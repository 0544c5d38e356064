"""Runs where the package is installed, emulated or not: `python arm_steps.py ARTIFACTS STATES OUT`.

Takes one step from each state of STATES.npz (keys `<step>/<tensor>`, `<step>/x`, `<step>/y`) and writes loss and state
after it to OUT.npz under the same keys.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.training.sparse_session import SparseSession

RATE = 1.0


def main(artifacts: str, states: str, out: str) -> None:
    session = SparseSession(Artifacts.load(Path(artifacts)))
    results: dict[str, Any] = {}
    with np.load(states) as arrays:
        for step in sorted({key.split("/")[0] for key in arrays}):
            given = {key.split("/")[1]: arrays[key] for key in arrays if key.startswith(f"{step}/")}
            x, y = given.pop("x"), given.pop("y")
            session.load(given)
            results[f"{step}/loss"] = np.array(session.train_step(x, y, RATE))
            results |= {f"{step}/{name}": value for name, value in session.state().items()}
    np.savez(out, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
