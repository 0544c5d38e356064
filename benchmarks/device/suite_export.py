"""Exports one network of a suite, in a process of its own: `python -m ...benchmarks.device.suite_export JSON`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["Export", "main"]

SEED = 0


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What to export, and where to."""

    model: str
    width: int
    pixels: int
    classes: int
    method: str
    train: str
    folder: str


def main(argv: list[str]) -> int:
    """Export what the JSON on the command line says."""
    wanted = msgspec.json.decode(argv[0], type=Export)
    try:
        from sparsyedge.edge.model.methods import make_method
        from sparsyedge.export.build import build_artifacts
        from sparsyedge.export.model_spec import ModelChoices, ModelSpec
    except ModuleNotFoundError as error:
        print(
            f"this machine cannot export without {error.name}; run the suite with `--prepare DIR` elsewhere, copy DIR "
            "here and add `--artifacts DIR`",
            file=sys.stderr,
        )
        return 2
    spec = ModelSpec(wanted.model, wanted.width, wanted.classes, (3, wanted.pixels, wanted.pixels))
    try:
        build_artifacts(
            spec,
            make_method(wanted.method),
            Path(wanted.folder),
            seed=SEED,
            check=lambda *made: None,
            choices=ModelChoices(train=wanted.train),
        )
    except SparsyedgeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
