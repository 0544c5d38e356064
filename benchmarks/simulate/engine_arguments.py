"""The options that say where simulated devices train, for every command that simulates at the paper's scale."""

from __future__ import annotations

from typing import get_args

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.benchmarks.simulate.engine import EngineKind
from sparsyedge.edge.commands.arguments import Parser

__all__ = ["add_engine_arguments"]


def add_engine_arguments(parser: Parser) -> None:
    """Add --engine, --address and --workers."""
    parser.add_argument(
        "--engine",
        choices=get_args(EngineKind),
        default="processes",
        help="where devices train: processes of this machine, or actors of a Ray cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDR",
        help="of the Ray cluster that this machine is part of: HOST:PORT, or auto (default: start Ray on this machine)",
    )
    parser.add_argument("--workers", type=positive, metavar="N", help="workers (default: one per core)")
