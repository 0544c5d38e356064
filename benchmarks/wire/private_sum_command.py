"""`sparsyedge bench private-sum`: what a sum of which nobody sees a part costs in bytes and seconds.

All parts play in this process, one after the other, with real keys, shares and masks; nothing travels.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.wire.model_pairs import Pair, synthetic_pair
from sparsyedge.coordinator.privacy.degree import degree_and_threshold
from sparsyedge.coordinator.privacy.desk import SumDesk
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.privacy.fixed_point import FixedPoint, Words
from sparsyedge.edge.privacy.member import Member
from sparsyedge.edge.privacy.messages import Advert, SumTask
from sparsyedge.edge.tensors import dense_bytes
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC, LOSSLESS, Codec
from sparsyedge.edge.wire.frame import encode_frame

__all__ = ["main", "make_parser"]

VALUE_BITS = 16
CAP = 1000
"""What a device weighs at most, in samples."""
COLLUDING = 0.1
CLEAR = (LOSSLESS, DEFAULT_CODEC)
COLUMNS = ("devices", "lost", "peers", "update, kB", "dense / it", "other, kB", "device, s", "coord., s", "exact")
SIGNATURE = b"\0" * 64
"""Signing is the fleet's identities' part, and is not measured here."""


@dataclass
class Figures:
    """One sum."""

    devices: int
    dropouts: float
    degree: int
    threshold: int
    update_bytes: int
    other_bytes: float
    """What a device sends and receives besides its update: keys, shares, openings."""
    device_s: float
    """Processor time of a device."""
    coordinator_s: float
    exact: bool
    """Whether the sum equals, bit for bit, that of the same integers in the clear."""


@dataclass
class Costs:
    """Processor seconds and bytes of all devices, and of the coordinator."""

    devices_s: float = 0.0
    coordinator_s: float = 0.0
    bytes: int = 0
    _clock: Callable[[], float] = field(default=time.thread_time, repr=False)

    @contextmanager
    def device(self) -> Iterator[None]:
        """Count the block as a device's."""
        began_s = self._clock()
        yield
        self.devices_s += self._clock() - began_s

    @contextmanager
    def coordinator(self) -> Iterator[None]:
        """Count the block as the coordinator's."""
        began_s = self._clock()
        yield
        self.coordinator_s += self._clock() - began_s

    def sent(self, message: msgspec.Struct) -> None:
        """Count a message."""
        self.bytes += len(msgspec.json.encode(message))


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench private-sum`."""
    arguments = make_parser().parse_args(argv)
    if any(not 0 <= share < 0.4 for share in arguments.dropouts):
        raise ConfigError(f"--dropouts {arguments.dropouts}: allowed are shares from 0 to below 0.4")
    pair = synthetic_pair(arguments.seed)
    changes = np.concatenate([*changes_on_support(pair)])[: arguments.values]
    figures = [
        measure(changes, devices, dropouts) for devices in arguments.devices for dropouts in sorted(arguments.dropouts)
    ]
    document = {
        "values": changes.size,
        "dense_values": sum(tensor.size for tensor in pair.state.values()),
        "float32_bytes": dense_bytes(pair.state),
        "frame_bytes": {codec: _frame_bytes(pair, codec) for codec in CLEAR},
        "sums": [asdict(each) for each in figures],
    }
    if arguments.json:
        print(json.dumps(document))
    else:
        _print(document, figures)
    return 0 if all(each.exact for each in figures) else 1


def changes_on_support(pair: Pair) -> Iterator[NDArray[np.float32]]:
    """How far each tensor moved: pruned ones where the round's model is not zero, the others everywhere."""
    for name, tensor in sorted(pair.state.items()):
        change = (tensor - pair.base[name]).ravel()
        yield change[pair.base[name].ravel() != 0] if name in pair.prunable else change


def measure(changes: NDArray[np.float32], devices: int, dropouts: float) -> Figures:
    """One sum of that many devices, of which a share is lost after it has given out its shares: the most work."""
    degree, threshold = degree_and_threshold(devices, colluding=COLLUDING, lost=dropouts)
    task = SumTask(
        context=secrets.token_bytes(32),
        scale=FixedPoint(clip=float(np.abs(changes).max()), value_bits=VALUE_BITS, cap=CAP, devices=devices),
        length=changes.size,
        degree=degree,
        threshold=threshold,
    )
    names = [f"device-{number:05}" for number in range(devices)]
    lost = set(names[:: round(1 / dropouts)][: int(dropouts * devices)]) if dropouts else set()
    costs, desk = Costs(), SumDesk(task, verify=_trusting, seed=task.context)
    members = {name: Member.begin(task, name) for name in names}
    _share(members, desk, costs)
    clear, update_bytes = _mask(members, lost, changes, desk, costs)
    _open(members, desk, costs)
    with costs.coordinator():
        result = desk.finish()
    mean, weight = task.scale.decode(clear, devices - len(lost))
    return Figures(
        devices=devices,
        dropouts=len(lost) / devices,
        degree=degree,
        threshold=threshold,
        update_bytes=update_bytes,
        other_bytes=costs.bytes / devices,
        device_s=costs.devices_s / devices,
        coordinator_s=costs.coordinator_s,
        exact=weight == result.weight and np.array_equal(mean, result.mean),
    )


def _trusting(advert: Advert, content: bytes) -> bool:
    return advert.signature == SIGNATURE


def _share(members: dict[str, Member], desk: SumDesk, costs: Costs) -> None:
    for member in members.values():
        with costs.device():
            advert = member.advert(lambda content: SIGNATURE)
        costs.sent(advert)
        with costs.coordinator():
            desk.take_advert(advert)
    with costs.coordinator():
        neighbourhoods = desk.begin_sharing()
    for name, member in members.items():
        costs.sent(neighbourhoods[name])
        with costs.device():
            shares = member.share(neighbourhoods[name], _trusting)
        costs.sent(shares)
        with costs.coordinator():
            desk.take_shares(shares)


def _mask(
    members: dict[str, Member], lost: set[str], changes: NDArray[np.float32], desk: SumDesk, costs: Costs
) -> tuple[Words, int]:
    """Masked updates of all but the lost devices; returns their sum in the clear, and the bytes of one."""
    with costs.coordinator():
        deliveries = desk.begin_masking()
    task, update_bytes = desk.task, 0
    clear = np.zeros(task.length + 1, task.scale.dtype)
    for number, (name, member) in enumerate(members.items()):
        if name in lost:
            continue
        costs.sent(deliveries[name])
        random = np.random.default_rng(number)
        own = changes * random.uniform(0.5, 1.0)
        with costs.device():
            words = task.scale.encode(own, int(random.integers(1, CAP)), random)
        clear += words
        with costs.device():
            payload = member.mask(deliveries[name], words)
        update_bytes = len(payload)
        with costs.coordinator():
            desk.take_update(name, payload)
    return clear, update_bytes


def _open(members: dict[str, Member], desk: SumDesk, costs: Costs) -> None:
    with costs.coordinator():
        requests = desk.begin_opening()
    for name, request in requests.items():
        costs.sent(request)
        with costs.device():
            opening = members[name].open(request)
        costs.sent(opening)
        with costs.coordinator():
            desk.take_opening(opening)


def _frame_bytes(pair: Pair, codec: Codec) -> int:
    encoded = encode_frame(
        pair.state, run="bench", round_number=2, base_id="0" * 64, base=pair.base, codec=codec, prunable=pair.prunable
    )
    return len(encoded.frame)


def _print(document: dict[str, object], figures: list[Figures]) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    for title in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    dense_values = document["dense_values"]
    assert isinstance(dense_values, int)
    for each in figures:
        dense = (dense_values + 1) * each.update_bytes // (int(str(document["values"])) + 1)
        table.add_row(
            f"{each.devices:,}",
            f"{each.dropouts:.0%}",
            f"{min(each.degree, each.devices - 1)}",
            f"{each.update_bytes / 1e3:,.0f}",
            f"{dense / each.update_bytes:.1f}",
            f"{each.other_bytes / 1e3:.1f}",
            f"{each.device_s:.3f}",
            f"{each.coordinator_s:.3f}",
            "yes" if each.exact else "NO",
        )
    console.print(table)
    console.print(f"{document['values']:,} values of {dense_values:,}; without privacy an update has:")
    for codec, size in document["frame_bytes"].items():  # type: ignore[attr-defined]
        console.print(f"  {codec:<9} {size:,} bytes")


def make_parser() -> Parser:
    """The options."""
    parser = Parser(
        prog="sparsyedge bench private-sum",
        description="What a sum of which nobody sees a part costs in bytes and seconds, with real keys and masks.",
    )
    parser.add_argument("--devices", type=positive, nargs="+", default=[10, 100], help="cohorts (default: 10 100)")
    parser.add_argument(
        "--dropouts", type=float, nargs="+", default=[0.0, 0.05, 0.3], help="shares that are lost (default: 0 0.05 0.3)"
    )
    parser.add_argument("--values", type=positive, help="only the first so many values of the update (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the made-up update (default: 0)")
    parser.add_argument("--json", action="store_true", help="print a document")
    return parser
