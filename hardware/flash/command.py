"""`sparsyedge flash pi|wheelhouse|verify|android`: one command per card, and no shell on the board."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DeviceFile, read_device_file
from sparsyedge.edge.storage import write_atomically
from sparsyedge.hardware.flash.android import make_bundle
from sparsyedge.hardware.flash.card import device_names
from sparsyedge.hardware.flash.fleet_authority import check_authority, record_library, sign_here
from sparsyedge.hardware.flash.next_steps import after_bundle
from sparsyedge.hardware.flash.pi_cards import add_image, make_or_update, say_next
from sparsyedge.hardware.flash.pi_options import add_settings
from sparsyedge.hardware.flash.read_back import inspect_card
from sparsyedge.hardware.flash.supplies import build_wheel, say, supplied
from sparsyedge.hardware.flash.wheel_hashes import write_lists
from sparsyedge.hardware.flash.wheelhouse import BOARD, MACHINES, PYTHONS, collect

__all__ = ["main", "make_parser"]

PHONE_DATA = "/root/.local/share/sparsyedge/data"
"""Where a phone's setup.sh puts the data."""


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code; raises SparsyedgeError for known failures."""
    arguments = make_parser().parse_args(argv)
    match arguments.command:
        case "pi":
            return make_or_update(arguments)
        case "wheelhouse":
            return _wheelhouse(arguments)
        case "verify":
            print("\n".join(inspect_card(arguments.card).lines(now_s=time.time())))
            return 0
        case _:
            return _android(arguments)


# ---- subcommands -----------------------------------------------------------------------------------------------------


def _wheelhouse(arguments: argparse.Namespace) -> int:
    if arguments.fleet_dir is not None:
        check_authority(arguments.fleet_dir)
    if arguments.out.exists():
        raise FlashError(f"{arguments.out} exists; remove it, or choose another folder with --out")
    pythons, machine = arguments.python or PYTHONS, arguments.machine
    if machine != BOARD and arguments.wheel is None:
        raise FlashError(f"--machine {machine} needs --wheel, our wheel for it; `pip wheel --no-deps .` builds one")
    wheels = collect(arguments.out, wheel=_named_wheel(arguments.wheel), pythons=pythons, machine=machine)
    megabytes = sum(wheel.path.stat().st_size for wheel in wheels) / 1e6
    kind = "64-bit ARM" if machine == BOARD else machine
    say(f"{arguments.out}: {len(wheels)} wheels for Python {', '.join(pythons)} on {kind}, {megabytes:.0f} MB")
    lists = write_lists(arguments.out, pythons, machine)
    if arguments.fleet_dir is not None:
        say(record_library(arguments.fleet_dir, arguments.out))
        for made in lists:
            write_atomically(arguments.out / f"{made.name}.sig", sign_here(arguments.fleet_dir, made))
        say(f"{', '.join(made.name for made in lists)}: signed for the fleet of {arguments.fleet_dir}")
    return 0


def _android(arguments: argparse.Namespace) -> int:
    devices = device_names(arguments.device_id, 1)
    ready = {} if arguments.device_file is None else _read_ready(arguments.device_file)
    with supplied(arguments, devices, board_data=PHONE_DATA, ready=ready) as supplies:
        device = supplies.invite(devices[0])
        path = make_bundle(
            arguments.out, device, wheelhouse=supplies.wheelhouse, sign=supplies.sign, data=supplies.files
        )
    say(f"{path}: a bundle for {devices[0]}, {path.stat().st_size / 1e6:.0f} MB (experimental)")
    say_next(after_bundle(path, device, authority=supplies.authority))
    return 0


def _read_ready(path: Path) -> dict[str, DeviceFile]:
    made = read_device_file(path)
    return {made.device: made}


def _named_wheel(path: Path | None) -> Path:
    if path is not None and not path.is_file():
        raise FlashError(f"no wheel {path}; make it with `make wheel-aarch64`, or leave out --wheel")
    return path or build_wheel()


# ---- arguments -------------------------------------------------------------------------------------------------------


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge flash", description="Make cards and phones that become devices of a fleet by themselves."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="SUBCOMMAND")
    pi = commands.add_parser("pi", help="a card from a stock Raspberry Pi OS Lite (64-bit) image")
    add_image(pi)
    _add_identity(pi, required=False)
    add_settings(pi)
    wheelhouse = commands.add_parser("wheelhouse", help="the wheels that boards install without a network")
    wheelhouse.add_argument("--out", type=Path, required=True, metavar="DIR")
    wheelhouse.add_argument(
        "--python", action="append", choices=PYTHONS, help="of the boards (default: 3.11 and 3.13; repeat for several)"
    )
    wheelhouse.add_argument(
        "--machine",
        choices=MACHINES,
        default=BOARD,
        help="of the devices, as `uname -m` says it (default: %(default)s)",
    )
    wheelhouse.add_argument(
        "--wheel", type=Path, metavar="FILE", help="ours for aarch64 (default: built from this installation's checkout)"
    )
    wheelhouse.add_argument(
        "--fleet-dir", type=Path, metavar="DIR", help="of `coordinator init`; puts the op library on its record"
    )
    verify = commands.add_parser("verify", help="read a card's image back")
    verify.add_argument("card", type=Path, metavar="CARD.img")
    android = commands.add_parser("android", help="a bundle for Termux on a phone (experimental)")
    android.add_argument("--out", type=Path, metavar="FILE", help="default: sparsyedge-DEVICE_ID.sh")
    _add_identity(android, required=True)
    return parser


def _add_identity(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--device-id", required=required, metavar="ID", help="who the device is, e.g. pi-07")
    parser.add_argument(
        "--coordinator", metavar="HOST", help="where it finds the broker (default: as `init` was told, or by mDNS)"
    )
    parser.add_argument(
        "--fleet-dir", type=Path, default=Path("fleet"), metavar="DIR", help="of `coordinator init` (default: ./fleet)"
    )
    parser.add_argument(
        "--device-file",
        type=Path,
        metavar="FILE",
        help="what `coordinator token` made, where the authority is elsewhere",
    )
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="of `flash wheelhouse` (default: made and kept)")
    parser.add_argument(
        "--data",
        metavar="FILE|DIR|NAME",
        help="an .npz or a folder of images, which travels along, or a data set's name",
    )
    parser.add_argument(
        "--share", metavar="INDEX/DEVICES", help="one LDA share of the data set, counted up with --count"
    )
