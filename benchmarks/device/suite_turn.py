"""The process that trains one workload of a suite: `python -m sparsyedge.benchmarks.device.suite_turn TASK WANTED`.

It also draws weights and batch, so that a board without room for them loses this process and not the suite.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.device.measurement import Task, run
from sparsyedge.benchmarks.step.profiles import everywhere, mask
from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.commands import logs
from sparsyedge.edge.errors import ArtifactError, SparsyedgeError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state

__all__ = ["Wanted", "main"]

SEED = 0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the artifacts must have been made for, and what to draw."""

    method: str
    width: int
    pixels: int
    train: str
    sparsity: float
    batch: int


def draw(task: Task, wanted: Wanted) -> Workload:
    """Random zeros and a random batch; raises ArtifactError if the artifacts are another workload's."""
    artifacts = Artifacts.load(Path(task.artifacts))
    manifest = artifacts.manifest
    facts = {
        "method": (manifest.method.name, wanted.method),
        "width": (manifest.width, wanted.width),
        "images": (tuple(manifest.input_shape), (3, wanted.pixels, wanted.pixels)),
        "train": (manifest.choices.train, wanted.train),
    }
    for name, (found, needed) in facts.items():
        if found != needed:
            raise ArtifactError(
                f"the artifacts in {task.artifacts} have {name} {found}, this workload needs {needed}; "
                "prepare them again"
            )
    state = read_initial_state(artifacts)
    if wanted.sparsity:
        state = mask(state, sorted(manifest.prunable), everywhere(wanted.sparsity), seed=SEED)
    return Workload.draw(artifacts, state, batch=wanted.batch, threads=task.threads, seed=SEED)


def main(argv: list[str]) -> int:
    """Run the task and print its cost as JSON."""
    logs.set_up()
    task, wanted = msgspec.json.decode(argv[0], type=Task), msgspec.json.decode(argv[1], type=Wanted)
    try:
        turn = run(task, partial(draw, wanted=wanted))
    except SparsyedgeError as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.encode(turn).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
