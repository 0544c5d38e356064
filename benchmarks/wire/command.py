"""`sparsyedge bench wire`: the cost of a model on the wire, by scheme: bytes, speed and error."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.wire.model_pairs import Pair, pair_from_file, pair_from_run, synthetic_pair
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.tensors import State, dense_bytes
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.codecs import CODECS, DEFAULT_CODEC, LOSSLESS, Codec
from sparsyedge.edge.wire.envelope import Mask, read_header
from sparsyedge.edge.wire.frame import decode_frame, encode_frame
from sparsyedge.edge.wire.sparse_tensor import bits_of, encode_weight

__all__ = ["main", "make_parser"]

DEFAULT_SCHEME = f"delta-{DEFAULT_CODEC}"
GZIP_LEVEL = 6
Result = TypeVar("Result")


@dataclass(frozen=True)
class Scheme:
    """A way to turn a model into bytes and back."""

    name: str
    encode: Callable[[], bytes]
    decode: Callable[[bytes], State]
    entropy_bound_bytes: int | None
    """The size of masks and value bytes at their entropy; None if the scheme has none."""


@dataclass(frozen=True)
class Figures:
    """The cost of one scheme; speeds are dense float32 megabytes per second, best of all repetitions."""

    bytes: int
    ratio: float
    encode_mb_s: float
    decode_mb_s: float
    max_abs_error: float
    entropy_bound_bytes: int | None


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge bench wire`."""
    arguments = make_parser().parse_args(argv)
    if arguments.pair is not None:
        pair = pair_from_file(arguments.pair)
    elif arguments.run is not None:
        pair = pair_from_run(arguments.run)
    else:
        pair = synthetic_pair(arguments.seed)
    figures = {scheme.name: _measure(scheme, pair.state, arguments.repeat) for scheme in _schemes(pair)}
    if arguments.json:
        print(json.dumps(_document(pair, figures)))
    else:
        _print(pair, figures)
    return 0


# ---- schemes ---------------------------------------------------------------------------------------------------------


def _schemes(pair: Pair) -> Iterator[Scheme]:
    """Common formats first, then our frames: whole, and as a difference to the base."""
    shapes = {name: tensor.shape for name, tensor in pair.state.items()}
    from_dense = partial(_from_dense, shapes=shapes)
    yield Scheme("dense", lambda: _dense(pair.state), from_dense, None)
    yield Scheme(
        "dense-gzip",
        lambda: zlib.compress(_dense(pair.state), GZIP_LEVEL),
        lambda content: from_dense(zlib.decompress(content)),
        None,
    )
    yield Scheme("coo-int32", lambda: _coordinates(pair.state), partial(_from_coordinates, shapes=shapes), None)
    for codec in (name for name, row in CODECS.items() if not row.needs_base):
        yield _frame_scheme(f"full-{codec}", pair, None, codec)
    for codec in CODECS:
        yield _frame_scheme(f"delta-{codec}", pair, pair.base, codec)


def _frame_scheme(name: str, pair: Pair, base: State | None, codec: Codec) -> Scheme:
    shapes = {tensor: pair.state[tensor].shape for tensor in pair.state}
    encode = partial(_frame, pair, base, codec)
    return Scheme(
        name, encode, lambda frame: decode_frame(frame, shapes, base).state, round(_entropy_bound(pair, base, codec))
    )


def _frame(pair: Pair, base: State | None, codec: Codec) -> bytes:
    encoded = encode_frame(
        pair.state, run="bench", round_number=1, base_id="0" * 64, base=base, codec=codec, prunable=pair.prunable
    )
    return encoded.frame


def _dense(state: State) -> bytes:
    return b"".join(state[name].tobytes() for name in sorted(state))


def _from_dense(content: bytes, *, shapes: dict[str, tuple[int, ...]]) -> State:
    state: State = {}
    start = 0
    for name in sorted(shapes):
        count = int(np.prod(shapes[name]))
        state[name] = np.frombuffer(content, np.float32, count, start).reshape(shapes[name]).copy()
        start += 4 * count
    return state


def _coordinates(state: State) -> bytes:
    """The usual sparse format: per tensor a count, the positions as int32, the values as float32."""
    parts = []
    for name in sorted(state):
        flat = state[name].reshape(-1)
        positions = np.flatnonzero(flat).astype(np.int32)
        parts += [np.int32(positions.size).tobytes(), positions.tobytes(), flat[positions].tobytes()]
    return b"".join(parts)


def _from_coordinates(content: bytes, *, shapes: dict[str, tuple[int, ...]]) -> State:
    state: State = {}
    start = 0
    for name in sorted(shapes):
        count = int(np.frombuffer(content, np.int32, 1, start)[0])
        positions = np.frombuffer(content, np.int32, count, start + 4)
        flat = np.zeros(int(np.prod(shapes[name])), dtype=np.float32)
        flat[positions] = np.frombuffer(content, np.float32, count, start + 4 + 4 * count)
        state[name] = flat.reshape(shapes[name])
        start += 4 + 8 * count
    return state


# ---- entropy ---------------------------------------------------------------------------------------------------------


def _entropy_bound(pair: Pair, base: State | None, codec: Codec) -> float:
    """Bytes for masks of independent entries and for value bytes of independent entries, tensor by tensor."""
    held = base or {}
    total = 0.0
    for name in pair.prunable:
        near = held.get(name)
        coded = encode_weight(name, pair.state[name], near, codec)
        size = pair.state[name].size
        if coded.entry.mask is Mask.DROPPED and near is not None:
            size = native.count_nonzero(bits_of(near))
        total += _mask_entropy(coded.entry.kept, size)
        total += sum(map(_byte_entropy, native.split_planes(coded.words)))
    others = [name for name in pair.state if name not in pair.prunable]
    words = [
        native.difference(bits_of(pair.state[name]), bits_of(held[name])) if name in held else bits_of(pair.state[name])
        for name in others
    ]
    return total + (sum(map(_byte_entropy, native.split_planes(np.concatenate(words)))) if words else 0.0)


def _position_bound(pair: Pair) -> float:
    """Bytes for the positions of all non-zeros, at one density per tensor."""
    return sum(_mask_entropy(int(np.count_nonzero(pair.state[name])), pair.state[name].size) for name in pair.prunable)


def _mask_entropy(kept: int, size: int) -> float:
    if kept in (0, size):
        return 0.0
    share = kept / size
    return -size * (share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8


def _byte_entropy(plane: native.Bytes) -> float:
    counts = np.bincount(plane)
    counts = counts[counts > 0]
    return float((counts * np.log2(plane.size / counts)).sum() / 8)


# ---- figures ---------------------------------------------------------------------------------------------------------


def _measure(scheme: Scheme, state: State, repeat: int) -> Figures:
    # Once is enough for gzip, which takes seconds.
    repeat = 1 if scheme.name == "dense-gzip" else repeat
    content, encode_s = _best(scheme.encode, repeat)
    decoded, decode_s = _best(lambda: scheme.decode(content), repeat)
    error = max(float(np.max(np.abs(decoded[name] - state[name]), initial=0.0)) for name in state)
    dense = dense_bytes(state)
    return Figures(
        bytes=len(content),
        ratio=dense / len(content),
        encode_mb_s=dense / encode_s / 1e6,
        decode_mb_s=dense / decode_s / 1e6,
        max_abs_error=error,
        entropy_bound_bytes=scheme.entropy_bound_bytes,
    )


def _best(run: Callable[[], Result], repeat: int) -> tuple[Result, float]:
    """A result, and the shortest time of all repetitions: other work on the machine can only add time."""
    seconds = float("inf")
    for _ in range(repeat):
        start_s = time.perf_counter()
        result = run()
        seconds = min(seconds, time.perf_counter() - start_s)
    return result, seconds


def _document(pair: Pair, figures: dict[str, Figures]) -> dict[str, object]:
    return {
        "source": pair.source,
        "schemes": {name: dataclasses.asdict(entry) for name, entry in figures.items()},
        "default": DEFAULT_SCHEME,
        "entropy_bound_bytes": round(_position_bound(pair)),
    }


def _print(pair: Pair, figures: dict[str, Figures]) -> None:
    console = Console()
    title = f"wire, {pair.source}: {dense_bytes(pair.state) / 1e6:.1f} MB of dense float32"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("scheme", "bytes", "ratio", "entropy", "enc MB/s", "dec MB/s", "max error"):
        table.add_column(heading, justify="left" if heading == "scheme" else "right", no_wrap=True)
    for name, entry in figures.items():
        table.add_row(
            f"{name} *" if name == DEFAULT_SCHEME else name,
            f"{entry.bytes:,}",
            f"{entry.ratio:.1f}x",
            "-" if entry.entropy_bound_bytes is None else f"{entry.entropy_bound_bytes:,}",
            f"{entry.encode_mb_s:,.0f}",
            f"{entry.decode_mb_s:,.0f}",
            f"{entry.max_abs_error:.1e}" if entry.max_abs_error else "0",
        )
    console.print(table)
    kept = sum(int(np.count_nonzero(pair.state[name])) for name in pair.prunable)
    size = sum(pair.state[name].size for name in pair.prunable)
    masks = {base is None: read_header(_frame(pair, base, LOSSLESS)).mask_bytes for base in (None, pair.base)}
    without = sum(name not in pair.base for name in pair.state)
    console.print(f"non-zeros  {kept:,} of {size:,} prunable ({kept / size:.2%})", highlight=False)
    console.print(
        f"masks      {masks[True]:,} B in full (entropy {_position_bound(pair):,.0f} B), "
        f"{masks[False]:,} B over the base",
        highlight=False,
    )
    console.print(f"base       {len(pair.base)} tensors, {without} of the model's have none", highlight=False)
    console.print("* the default; entropy is that of masks and value bytes alone, of order 0", highlight=False)


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench wire",
        description="Put a sparse model into bytes in several ways; compare size, speed on one core, and error. "
        "Without --run or --pair, a seeded synthetic ResNet-18 with the densities of trained masks.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--run", type=Path, metavar="DIR", help="the last two models of a run directory")
    source.add_argument("--pair", type=Path, metavar="FILE.npz", help="arrays prev/<name> and cur/<name>")
    parser.add_argument("--seed", type=int, default=1337, help="of the synthetic models (default: %(default)s)")
    parser.add_argument("--repeat", type=positive, default=7, help="times that each is tried (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    return parser
