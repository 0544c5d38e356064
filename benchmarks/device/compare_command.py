"""`sparsyedge bench compare RESULT.json...`: several boards side by side."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.benchmarks.device.plots import draw, page
from sparsyedge.benchmarks.device.result import read_result
from sparsyedge.benchmarks.device.tables import comparison
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.storage import write_atomically

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """Show the results of several boards side by side."""
    arguments = make_parser().parse_args(argv)
    results = [read_result(path) for path in arguments.results]
    if arguments.out is not None:
        picture = draw(results)
        if picture is not None:
            write_atomically(arguments.out / "compare.png", picture)
        write_atomically(arguments.out / "compare.html", page(results, picture).encode())
    print(comparison(results))
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge bench compare`."""
    parser = Parser(
        prog="sparsyedge bench compare", description="Show results of `sparsyedge bench device` side by side."
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json", help="from `bench device --out`")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write compare.html and compare.png there")
    return parser
