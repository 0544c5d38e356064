"""`sparsyedge methods`: lists the training methods that a run can use."""

from __future__ import annotations

import json

import msgspec

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.model.methods import COMMON_OPTIONS, METHODS, make_method

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """List the methods with one line each, or everything about them as JSON."""
    print(_as_json() if make_parser().parse_args(argv).json else _as_text())
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge methods`."""
    parser = Parser(prog="sparsyedge methods", description="List the training methods that a run can use.")
    parser.add_argument("--json", action="store_true", help="print one JSON document: every field of every method")
    return parser


def _as_text() -> str:
    width = max(len(name) for name in METHODS)
    lines = [f"{name:<{width}}  {row.summary}" for name, row in METHODS.items()]
    hint = "Choose one with `sparsyedge export --method NAME` or in the [method] table of a run file."
    return "\n".join([*lines, "", hint])


def _as_json() -> str:
    document = {
        name: {
            "summary": row.summary,
            "options": sorted((*row.options, *COMMON_OPTIONS)),
            "defaults": msgspec.to_builtins(make_method(name)),
        }
        for name, row in METHODS.items()
    }
    return json.dumps(document)
