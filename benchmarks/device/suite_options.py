"""`sparsyedge bench device --suite NAME`: a board's seconds, joules, memory and heat over a whole list of workloads."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.machine import disturbance
from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.device.board import fingerprint
from sparsyedge.benchmarks.device.suite import SUITES, SuiteWorkload, chosen
from sparsyedge.benchmarks.device.suite_page import draw_suite, suite_page
from sparsyedge.benchmarks.device.suite_result import FORMAT, Row, SuiteResult, read_suite
from sparsyedge.benchmarks.device.suite_run import SuiteSettings, export_all, run_suite
from sparsyedge.benchmarks.device.suite_tables import suite_summary
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.device.energy import open_meter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically

__all__ = ["add_suite_arguments", "check_no_suite", "run_suite_options"]

DOCUMENT = "suite.json"
OF_SUITES = ("only", "prepare", "batches", "limit_minutes")
BATCHES, LIMIT_MINUTES = 5, 30.0


def add_suite_arguments(parser: Parser) -> None:
    """The options that only a suite has."""
    add = parser.add_argument
    add("--suite", choices=sorted(SUITES), help="measure a list of workloads, each in its own process")
    add("--only", metavar="PATTERN,...", help="of a suite: the workloads with these names, such as 'resnet18-224-*'")
    add("--batches", type=positive, help=f"of a suite: at least so many per workload (default: {BATCHES})")
    add(
        "--limit-minutes",
        type=positive_number,
        metavar="M",
        help=f"of a suite: for one workload's training; a slower one is left out (default: {LIMIT_MINUTES:g})",
    )
    add("--prepare", type=Path, metavar="DIR", help="of a suite: export for --artifacts DIR of a board, and end")


def check_no_suite(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for options of a suite without one."""
    for name in OF_SUITES:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for suites; add --suite {'|'.join(sorted(SUITES))}")
    if arguments.minutes == 0:
        raise ConfigError("--minutes has value 0, allowed are more than 0 and at most 1440; 0 is for --suite alone")


def run_suite_options(arguments: argparse.Namespace) -> int:
    """Measure the suite, save JSON, HTML and PNG, and print a table or, with --json, the document."""
    settings = _settings(arguments)
    workloads = chosen(arguments.suite, arguments.only)
    if arguments.prepare is not None:
        return _prepare(workloads, arguments.prepare, limit_s=60 * settings.limit_minutes)
    # Fail on a missing meter now rather than after an export.
    open_meter(arguments.meter).stop()
    result = _measure(workloads, settings, arguments.out)
    if arguments.out is not None:
        _keep(result, arguments.out, with_page=True)
    print(_document(result).decode() if arguments.json else suite_summary(result))
    return 0 if any(row.cost is not None for row in result.rows) else 2


def _settings(arguments: argparse.Namespace) -> SuiteSettings:
    limit_minutes = arguments.limit_minutes or LIMIT_MINUTES
    if arguments.minutes > limit_minutes:
        raise ConfigError(
            f"--minutes has value {arguments.minutes:g}, above --limit-minutes {limit_minutes:g}: no workload would be "
            f"over in time; allow more"
        )
    return SuiteSettings(
        suite=arguments.suite,
        minutes=arguments.minutes,
        batches=arguments.batches or BATCHES,
        limit_minutes=limit_minutes,
        threads=arguments.threads,
        meter=arguments.meter,
        idle_s=arguments.idle_s,
        artifacts=None if arguments.artifacts is None else str(arguments.artifacts),
    )


def _prepare(workloads: tuple[SuiteWorkload, ...], folder: Path, *, limit_s: float) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    failed = export_all(workloads, folder, limit_s=limit_s, say=_say)
    print(f"copy {folder} to the board and add `--artifacts {folder.name}` there")
    return 2 if failed else 0


def _measure(workloads: tuple[SuiteWorkload, ...], settings: SuiteSettings, out: Path | None) -> SuiteResult:
    """All rows; with a folder, each is kept there at once, and those of an earlier run are not repeated."""
    begun = SuiteResult(
        format=FORMAT,
        suite=settings.suite,
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine=fingerprint(),
        settings=settings.as_settings(),
        rows=[],
        notes=[],
    )
    earlier = _earlier(begun, out)
    known = list(earlier.values())

    def keep(row: Row) -> None:
        known.append(row)
        if out is not None:
            _keep(msgspec.structs.replace(begun, rows=known), out, with_page=False)

    rows = run_suite(workloads, settings, done=earlier, keep=keep, say=_say)
    disturbed = disturbance(settings.threads)
    others = [row for row in known if row.workload not in {each.workload for each in rows}]
    return msgspec.structs.replace(begun, rows=[*rows, *others], notes=[disturbed] if disturbed else [])


def _earlier(begun: SuiteResult, out: Path | None) -> dict[str, Row]:
    """What an earlier run measured in that folder; raises ConfigError if it had other settings."""
    if out is None or not (out / DOCUMENT).is_file():
        return {}
    found = read_suite(out / DOCUMENT)
    if found.settings != begun.settings or found.machine["cpu"] != begun.machine["cpu"]:
        raise ConfigError(
            f"{out / DOCUMENT} was made with other settings or on another machine; give the same ones again, or choose "
            f"another --out"
        )
    return {row.workload: row for row in found.rows if row.outcome == "measured"}


def _document(result: SuiteResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1)


def _keep(result: SuiteResult, out: Path, *, with_page: bool) -> None:
    write_atomically(out / DOCUMENT, _document(result) + b"\n")
    if with_page:
        picture = draw_suite([result])
        write_atomically(out / "suite.html", suite_page([result], picture).encode())
        if picture is not None:
            write_atomically(out / "suite.png", picture)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
