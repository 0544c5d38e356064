"""`sparsyedge bench rounds`: rounds of many devices over a real Mosquitto, with a real coordinator process."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.machine import disturbance, machine
from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.common.processes import ending_on_sigterm
from sparsyedge.benchmarks.rounds.figures import Document, Figures, Options, PeerFigures, Point, fit_of, point_of
from sparsyedge.benchmarks.rounds.measure import Plan, measure
from sparsyedge.benchmarks.rounds.measure_peer import measure_peer
from sparsyedge.benchmarks.rounds.peer import SUBSCRIBERS
from sparsyedge.benchmarks.rounds.table import describe
from sparsyedge.benchmarks.simulate.local_mosquitto import find_mosquitto
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.edge.wire.codecs import CODECS, LOSSLESS
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.model_spec import ModelSpec

__all__ = ["main", "make_parser"]

MAX_DEVICES = 100_000
"""A cohort has no more members."""
SHOWN_PROBLEMS = 5
SPARE_FILES = 512
"""Files that Mosquitto and the processes of devices have open beside the connections."""


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench rounds`."""
    arguments = make_parser().parse_args(argv)
    if arguments.subscriber and not arguments.peer:
        raise ConfigError(
            "--subscriber chooses who takes the peer's chunks, and there is no peer; add --peer mosquitto"
        )
    find_mosquitto()
    _allow_open_files(max(arguments.devices))
    notes = [note for note in (disturbance(available_cores()),) if note]
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="sparsyedge-rounds-") as scratch:
        points = _measure_all(arguments, Path(scratch))
    document = Document(
        machine=machine(),
        options=Options(
            width=arguments.width,
            codec=arguments.codec,
            rounds=arguments.rounds,
            variants=arguments.variants,
            repeat=arguments.repeat,
            peer=arguments.peer or "",
        ),
        points=tuple(points),
        fit=fit_of(points),
        notes=tuple(notes),
    )
    print(msgspec.json.encode(document).decode() if arguments.json else describe(document))
    return 0 if all(point.figures.lost == point.figures.counted_twice == 0 for point in points) else 1


def _measure_all(arguments: argparse.Namespace, scratch: Path) -> list[Point]:
    artifacts = scratch / "artifacts"
    spec = ModelSpec.for_data("resnet18", arguments.width, DATASETS["digits"].form)
    build_artifacts(spec, method_of(MethodConfig()), artifacts, seed=0, check=lambda *made: None)
    points = []
    for devices in arguments.devices:
        plan = Plan(
            devices=devices,
            codec=arguments.codec,
            rounds=arguments.rounds,
            variants=arguments.variants,
            limit_s=arguments.limit,
            fsyncs=arguments.fsyncs,
            extra=tuple(arguments.set),
        )
        points.append(_measure_size(plan, arguments, artifacts, scratch))
    return points


def _measure_size(plan: Plan, arguments: argparse.Namespace, artifacts: Path, scratch: Path) -> Point:
    """Runs and peers take turns: what disturbs the machine disturbs both."""
    repeat, subscriber = arguments.repeat, arguments.subscriber or "lean"
    runs: list[Figures] = []
    peers: list[PeerFigures] = []
    for turn in range(repeat):
        place = scratch / f"{plan.devices}-{turn}"
        place.mkdir()
        result = measure(plan, artifacts, place)
        runs.append(result.figures)
        _progress(f"{plan.devices} devices, run {turn + 1} of {repeat}: {result.figures.updates_per_s:g} updates/s")
        for problem in result.problems[:SHOWN_PROBLEMS]:
            _progress(f"a device: {problem}")
        if arguments.peer:
            peer_place = scratch / f"{plan.devices}-{turn}-peer"
            peer_place.mkdir()
            peers.append(measure_peer(plan, result, artifacts, place / "frames", peer_place, subscriber=subscriber))
            _progress(f"Mosquitto alone: {peers[-1].updates_per_s:g} updates/s")
    return point_of(runs, peers)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _allow_open_files(devices: int) -> None:
    """Raise our limit of file descriptors, which Mosquitto and the devices inherit: one per connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = devices + SPARE_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ConfigError(
            f"{devices} devices need {wanted} open files in Mosquitto, and this shell allows {hard}; raise it with "
            f"`ulimit -Hn {wanted}` as root, or measure fewer devices"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _sizes(text: str) -> list[int]:
    """Numbers of devices, separated by commas, for argparse."""
    sizes = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not 1 <= int(part) <= MAX_DEVICES:
            raise argparse.ArgumentTypeError(f"{part!r} is not a number of devices, from 1 to {MAX_DEVICES}")
        sizes.append(int(part))
    return sizes


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench rounds",
        description="Rounds of many devices that do everything but train: a real Mosquitto, a real coordinator, and an "
        "MQTT connection per device.",
    )
    parser.add_argument(
        "--devices",
        type=_sizes,
        default=[200],
        metavar="N[,N...]",
        help="devices in the round; several numbers give a table and bytes per device (default: 200)",
    )
    parser.add_argument("--width", type=positive, default=64, help="channels of the first stage (default: %(default)s)")
    parser.add_argument(
        "--codec", choices=list(CODECS), default=LOSSLESS, help="the run's codec (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=1,
        help="measure this round; from round 2 on, updates are differences to the round's model (default: %(default)s)",
    )
    parser.add_argument("--variants", type=positive, default=8, help="different updates (default: %(default)s)")
    parser.add_argument(
        "--peer", choices=["mosquitto"], help="also measure what Mosquitto alone moves with the same bytes, in turns"
    )
    parser.add_argument(
        "--subscriber",
        choices=list(SUBSCRIBERS),
        help="who takes the peer's chunks: our leanest client, the same with hash and disk, or a coordinator's link "
        "(default: lean)",
    )
    parser.add_argument("--repeat", type=positive, default=1, help="runs to take medians of (default: %(default)s)")
    parser.add_argument(
        "--limit", type=positive_number, default=3600.0, metavar="S", help="seconds a round may take (default: 3600)"
    )
    parser.add_argument(
        "--fsyncs", action="store_true", help="count the coordinator's fsyncs with strace, which slows it down"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a further line of run.toml; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
