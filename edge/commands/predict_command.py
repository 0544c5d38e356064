"""`sparsyedge predict MODEL FILE...`: asks a delivered model about files. Needs only a device's install."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.predictions import add_question, answer

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge predict`."""
    arguments = make_parser().parse_args(argv)
    answer(arguments.model, arguments)
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge predict`."""
    parser = Parser(
        prog="sparsyedge predict", description="Ask a delivered model about images and .npz files: classes, or values."
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.onnx or model_float.onnx of a run")
    add_question(parser)
    return parser
