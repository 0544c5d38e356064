"""`sparsyedge bench compare RESULT.json...`: several boards side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsyedge.benchmarks.device.plots import draw, page
from sparsyedge.benchmarks.device.result import read_result
from sparsyedge.benchmarks.device.suite_page import draw_suite, suite_page
from sparsyedge.benchmarks.device.suite_result import is_suite, read_suite
from sparsyedge.benchmarks.device.suite_tables import suite_comparison
from sparsyedge.benchmarks.device.tables import comparison
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.storage import write_atomically

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """Show the results of several boards side by side."""
    arguments = make_parser().parse_args(argv)
    if any(is_suite(path) for path in arguments.results):
        return _compare_suites(arguments.results, arguments.out)
    results = [read_result(path) for path in arguments.results]
    if arguments.out is not None:
        picture = draw(results)
        if picture is not None:
            write_atomically(arguments.out / "compare.png", picture)
        write_atomically(arguments.out / "compare.html", page(results, picture).encode())
    print(comparison(results))
    return 0


def _compare_suites(paths: Sequence[Path], out: Path | None) -> int:
    results = [read_suite(path) for path in paths]
    if out is not None:
        picture = draw_suite(results)
        if picture is not None:
            write_atomically(out / "compare.png", picture)
        write_atomically(out / "compare.html", suite_page(results, picture).encode())
    print(suite_comparison(results))
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge bench compare`."""
    parser = Parser(
        prog="sparsyedge bench compare",
        description="Show results of `sparsyedge bench device` side by side; those of a suite also beside published "
        "and modelled seconds.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json", help="from `bench device --out`")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write compare.html and compare.png there")
    return parser
