"""`sparsyedge bench scale`: from documents of `bench rounds` to a million devices, as markdown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.rounds.figures import Document
from sparsyedge.benchmarks.rounds.scale import Box, Costs, Layout, Limit, costs_of, layout_of, limits_of
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError

__all__ = ["main", "make_parser"]

KILO = 1000


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench scale`."""
    arguments = make_parser().parse_args(argv)
    documents = [_read(Path(path)) for path in arguments.documents]
    costs = costs_of(documents)
    box = Box(
        round_s=arguments.within,
        cores=arguments.cores,
        memory_gb=arguments.memory,
        fsyncs_per_s=arguments.fsyncs_per_s,
        connections=arguments.connections,
    )
    limits, layout = limits_of(costs, box), layout_of(costs, box, arguments.devices)
    if arguments.json:
        found = {"box": asdict(box), "limits": [asdict(each) for each in limits], "layout": asdict(layout)}
        print(json.dumps(found))
    else:
        print("\n".join(_markdown(documents, costs, box, limits, layout)))
    return 0


def _read(path: Path) -> Document:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Document)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give files from `bench rounds --json`") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no document of `sparsyedge bench rounds --json`: {error}") from error


def _markdown(
    documents: Sequence[Document], costs: Costs, box: Box, limits: Sequence[Limit], layout: Layout
) -> Iterator[str]:
    options = documents[0].options
    measured = _listed(sorted(set(costs.sizes)))
    yield f"Width {options.width}, codec {options.codec}, round {options.rounds}. Measured at {measured} devices."
    yield ""
    yield from _costs(costs, sorted({*costs.sizes, 100_000, layout.devices}))
    yield ""
    yield f"One broker and one coordinator, a round of {box.round_s:g} s, {box.cores} cores, {box.memory_gb:g} GB:"
    yield ""
    yield "| breaks at devices | what |"
    yield "|---|---|"
    for limit in limits:
        yield f"| {limit.devices:,} | {limit.what} |"
    yield ""
    yield f"For {layout.devices:,} devices:"
    yield ""
    yield "| | takes |"
    yield "|---|---|"
    yield f"| brokers | {layout.brokers:,} |"
    yield f"| coordinator shards of {box.cores} cores | {layout.shards:,} |"
    yield f"| or regional coordinators, in a tree of {layout.levels} levels | {layout.regions:,} |"
    yield f"| bytes that the root receives per round | {_bytes(layout.root_bytes)} |"
    yield f"| bytes of tasks per round, every name to every device | {_bytes(layout.task_bytes_flat)} |"
    yield f"| bytes of tasks per round, names of the region | {_bytes(layout.task_bytes_tree)} |"


def _costs(costs: Costs, sizes: Sequence[int]) -> Iterator[str]:
    """A row per size; those beyond the measured ones are the lines, and say so."""
    yield (
        "| devices | messages | offers | bytes up | bytes down | task | coordinator CPU | broker CPU | coordinator | "
        "broker | fsyncs |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    fsyncs = "-" if costs.fsyncs is None else f"{costs.fsyncs:g}"
    for size in sizes:
        mark = "" if size in costs.sizes else " (line)"
        yield (
            f"| {size:,}{mark} | {costs.messages(size):.1f} | {costs.offers(size):.1f} | "
            f"{_bytes(costs.bytes_up(size))} | {_bytes(costs.bytes_down(size))} | {_bytes(costs.task_bytes(size))} | "
            f"{1e3 * costs.coordinator_cpu_s(size):.2f} ms | {1e3 * costs.broker_cpu_s(size):.2f} ms | "
            f"{_bytes(1e6 * costs.coordinator_mb(size))} | {_bytes(1e6 * costs.broker_mb(size))} | {fsyncs} |"
        )


def _listed(sizes: Sequence[int]) -> str:
    *first, last = (f"{size:,}" for size in sizes)
    return f"{', '.join(first)} and {last}" if first else last


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < KILO:
            return f"{value:.3g} {unit}"
        value /= KILO
    return f"{value:.3g} TB"


def _millions(text: str) -> int:
    """A number of devices, also as 1e6, for argparse."""
    value = float(text)
    if not 1 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of devices, from 1 to 10^9")
    return int(value)


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench scale",
        description="What a million devices would take, from measured rounds of up to ten thousand; prints markdown.",
    )
    parser.add_argument("documents", nargs="+", metavar="FILE", help="documents of `sparsyedge bench rounds --json`")
    parser.add_argument("--devices", type=_millions, default=10**6, help="extrapolate to (default: 1e6)")
    parser.add_argument(
        "--within", type=positive_number, default=600.0, metavar="S", help="seconds of a round (default: 600)"
    )
    parser.add_argument("--cores", type=positive, default=2, help="cores of a coordinator's machine (default: 2)")
    parser.add_argument(
        "--memory", type=positive_number, default=16.0, metavar="GB", help="memory of a machine (default: 16)"
    )
    parser.add_argument(
        "--fsyncs-per-s", type=positive_number, default=500.0, metavar="N", help="what its disk does (default: 500)"
    )
    parser.add_argument(
        "--connections", type=positive, default=100_000, metavar="N", help="of one broker (default: 100000)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
