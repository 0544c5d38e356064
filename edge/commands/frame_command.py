"""`sparsyedge frame inspect FILE`: shows the content of a frame, for debugging. Needs only the base install."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.wire.envelope import DIGEST_BYTES, FrameHeader, read_header

__all__ = ["main", "make_parser"]

NAME_COLUMNS = 32


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge frame`."""
    arguments = make_parser().parse_args(argv)
    try:
        frame = arguments.file.read_bytes()
    except OSError as error:
        raise FrameError(f"cannot read {arguments.file}: {error.strerror or error}") from error
    try:
        header = read_header(frame)
    except FrameError as error:
        raise FrameError(f"{arguments.file}: {error}") from error
    document = describe(header, len(frame))
    print(json.dumps(document) if arguments.json else "\n".join(_lines(document, str(arguments.file))))
    return 0


def describe(header: FrameHeader, frame_bytes: int) -> dict[str, Any]:
    """A frame's description of itself as plain data, plus its length."""
    weights = [
        {
            "name": weight.name,
            "shape": list(weight.shape),
            "kept": weight.kept,
            "density": weight.kept / weight.size if weight.size else 0.0,
            "mask": weight.mask.name.lower(),
            "difference": weight.difference,
            "scale": weight.scale,
        }
        for weight in header.weights
    ]
    others = [
        {"name": other.name, "shape": list(other.shape), "difference": other.difference} for other in header.others
    ]
    dense_bytes = 4 * sum(tensor.size for tensor in header.tensors)
    sections = {"masks": header.mask_bytes, "weights": header.weight_bytes, "others": header.other_bytes}
    sections = {"header": frame_bytes - DIGEST_BYTES - sum(sections.values()), **sections, "digest": DIGEST_BYTES}
    return {
        "version": 2,
        "run": header.run,
        "round": header.round,
        "codec": header.codec,
        "base_id": header.base_id,
        "needs_base": header.needs_base,
        "bytes": frame_bytes,
        "sections": sections,
        "weights": weights,
        "others": others,
        "kept": sum(weight.kept for weight in header.weights),
        "prunable": sum(weight.size for weight in header.weights),
        "dense_bytes": dense_bytes,
        "ratio": dense_bytes / frame_bytes,
    }


def _lines(document: dict[str, Any], source: str) -> Iterable[str]:
    needed = "needed to decode it" if document["needs_base"] else "not needed to decode it"
    yield f"{source}: frame version {document['version']}, {document['bytes']:,} bytes, digest right"
    yield f"run {_printable(document['run'])}, round {document['round']}, codec {document['codec']}"
    yield f"base {_printable(document['base_id'])}, {needed}"
    yield ""
    yield f"{'section':<12} {'bytes':>12}"
    yield from (f"{name:<12} {size:>12,}" for name, size in document["sections"].items())
    yield ""
    yield f"{'weight':<{NAME_COLUMNS}} {'shape':>13} {'kept':>10} {'density':>8} {'mask':>8}"
    for weight in document["weights"]:
        yield (
            f"{_printable(weight['name']):<{NAME_COLUMNS}} {_shape(weight['shape']):>13} {weight['kept']:>10,} "
            f"{weight['density']:>8.2%} {weight['mask']:>8}"
        )
    yield ""
    yield f"{'other':<{NAME_COLUMNS}} {'shape':>13} {'coded as':>10}"
    for other in document["others"]:
        coded = "difference" if other["difference"] else "values"
        yield f"{_printable(other['name']):<{NAME_COLUMNS}} {_shape(other['shape']):>13} {coded:>10}"
    yield ""
    density = document["kept"] / document["prunable"] if document["prunable"] else 0.0
    yield f"kept {document['kept']:,} of {document['prunable']:,} prunable entries ({density:.2%})"
    yield f"{document['ratio']:.2f}x less than dense float32 ({document['dense_bytes']:,} bytes)"


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _printable(text: str) -> str:
    """A name made harmless to the terminal, whatever its sender put into it."""
    return text if text.isprintable() else ascii(text)


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge frame", description="Inspect frames: models and updates on the wire.")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="print what a frame holds")
    inspect.add_argument("file", type=Path, help="a frame, e.g. model.frame of a run, or one of a device's models/")
    inspect.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    return parser
