"""`sparsyedge report RUN...`: one page with plots of one run, or of several side by side."""

from __future__ import annotations

import json
from pathlib import Path

from sparsyedge.benchmarks.report.figures import draw_all
from sparsyedge.benchmarks.report.page import png_of, render_page, svg_of
from sparsyedge.benchmarks.report.run_data import ReportedRun, read_runs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically

__all__ = ["main", "make_parser"]

PAGE_NAME = "report.html"


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge report`."""
    arguments = make_parser().parse_args(argv)
    if len({path.resolve() for path in arguments.runs}) < len(arguments.runs):
        raise ConfigError("a run was named twice; name each run directory once")
    runs = read_runs(arguments.runs)
    _refuse_empty(runs)
    out = arguments.out or arguments.runs[0] / "report"
    files = _write(runs, out, svg=arguments.svg)
    if arguments.json:
        print(json.dumps({"page": str(out / PAGE_NAME), "plots": [str(path) for path in files]}))
    else:
        print(f"{out / PAGE_NAME}, and its plots beside it: {', '.join(path.name for path in files)}")
    return 0


def _refuse_empty(runs: list[ReportedRun]) -> None:
    for run in runs:
        if not run.rounds:
            raise ConfigError(f"run {run.summary.run_dir} has no finished round yet; wait for one, or leave it out")


def _write(runs: list[ReportedRun], out: Path, *, svg: bool) -> list[Path]:
    """Write the plots and the page, each complete or not at all; returns the plots' paths."""
    drawn = [(plot, png_of(plot)) for plot in draw_all(runs)]
    files = {out / f"{plot.name}.png": png for plot, png in drawn}
    if svg:
        files |= {out / f"{plot.name}.svg": svg_of(plot) for plot, _ in drawn}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            write_atomically(path, content)
        write_atomically(out / PAGE_NAME, render_page(runs, drawn).encode())
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error}; choose another folder with --out") from error
    return list(files)


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge report",
        description="Make one HTML page with plots, and the plots as PNG files, of one run or of several compared.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=Path, help="where the page and plots go (default: `report` in the first run)")
    parser.add_argument("--svg", action="store_true", help="write the plots as SVG files, too")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
