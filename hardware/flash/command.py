"""`sparsyedge flash pi|wheelhouse|verify|android`: one command per card, and no shell on the board."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.installation import checkout, installed_wheel
from sparsyedge.edge.security.enrolment_messages import DeviceFile, read_device_file
from sparsyedge.edge.storage import write_atomically
from sparsyedge.hardware.flash.android import make_bundle
from sparsyedge.hardware.flash.card import CardPlan, device_names, make_cards
from sparsyedge.hardware.flash.card_data import CardData, card_data, check_named
from sparsyedge.hardware.flash.disk import look_up, write_card
from sparsyedge.hardware.flash.first_boot import Wifi
from sparsyedge.hardware.flash.fleet_authority import (
    Inviter,
    check_authority,
    record_library,
    sign_here,
    signed_elsewhere,
)
from sparsyedge.hardware.flash.next_steps import after_bundle, after_cards
from sparsyedge.hardware.flash.own_wheel import own_wheel
from sparsyedge.hardware.flash.read_back import inspect_card
from sparsyedge.hardware.flash.wheel_cache import CACHE, kept_wheelhouse
from sparsyedge.hardware.flash.wheel_hashes import WheelList, write_lists
from sparsyedge.hardware.flash.wheelhouse import PYTHONS, collect

__all__ = ["main", "make_parser"]

BOARD_DATA = "/var/lib/sparsyedge/data"
"""Where first boot puts the data that came on the card."""
PHONE_DATA = "/root/.local/share/sparsyedge/data"
"""Where a phone's setup.sh puts the data."""


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code; raises SparsyedgeError for known failures."""
    arguments = make_parser().parse_args(argv)
    match arguments.command:
        case "pi":
            return _pi(arguments)
        case "wheelhouse":
            return _wheelhouse(arguments)
        case "verify":
            print("\n".join(inspect_card(arguments.card).lines(now_s=time.time())))
            return 0
        case _:
            return _android(arguments)


# ---- subcommands -----------------------------------------------------------------------------------------------------


def _pi(arguments: argparse.Namespace) -> int:
    devices = device_names(arguments.device_id, arguments.count)
    if arguments.write and len(devices) > 1:
        raise FlashError("--write fills one card and --count makes several; write them one by one")
    if not arguments.image.is_file():
        raise FlashError(f"no image {arguments.image}; check the path")
    disk = look_up(arguments.write) if arguments.write else None
    wifi = _wifi(arguments)
    with _supplied(arguments, devices, board_data=BOARD_DATA) as supplies:
        plan = CardPlan(
            image=arguments.image,
            invite=supplies.invite,
            wifi=wifi,
            wheelhouse=supplies.wheelhouse,
            sign=supplies.sign,
            data=supplies.files,
        )
        cards = []
        for device, path in make_cards(plan, devices, arguments.out):
            cards.append(path)
            _say(f"{path}: a card for {device}, {path.stat().st_size / 1e9:.1f} GB")
            if disk:
                write_card(path, disk)
                _say(f"{disk.path}: written and read back")
    steps = after_cards(
        cards,
        supplies.invited,
        authority=supplies.authority,
        has_wifi=wifi is not None,
        written=disk is not None,
    )
    _say_next(steps)
    return 0


def _wheelhouse(arguments: argparse.Namespace) -> int:
    if arguments.fleet_dir is not None:
        check_authority(arguments.fleet_dir)
    if arguments.out.exists():
        raise FlashError(f"{arguments.out} exists; remove it, or choose another folder with --out")
    wheels = collect(arguments.out, wheel=_named_wheel(arguments.wheel), pythons=arguments.python or PYTHONS)
    megabytes = sum(wheel.path.stat().st_size for wheel in wheels) / 1e6
    pythons = ", ".join(arguments.python or PYTHONS)
    _say(f"{arguments.out}: {len(wheels)} wheels for Python {pythons} on 64-bit ARM, {megabytes:.0f} MB")
    lists = write_lists(arguments.out)
    if arguments.fleet_dir is not None:
        _say(record_library(arguments.fleet_dir, arguments.out))
        for made in lists:
            write_atomically(arguments.out / f"{made.name}.sig", sign_here(arguments.fleet_dir, made))
        _say(f"{', '.join(made.name for made in lists)}: signed for the fleet of {arguments.fleet_dir}")
    return 0


def _android(arguments: argparse.Namespace) -> int:
    devices = device_names(arguments.device_id, 1)
    with _supplied(arguments, devices, board_data=PHONE_DATA) as supplies:
        device = supplies.invite(devices[0])
        path = make_bundle(
            arguments.out, device, wheelhouse=supplies.wheelhouse, sign=supplies.sign, data=supplies.files
        )
    _say(f"{path}: a bundle for {devices[0]}, {path.stat().st_size / 1e6:.0f} MB (experimental)")
    _say_next(after_bundle(path, device, authority=supplies.authority))
    return 0


# ---- data, wheels and identities -------------------------------------------------------------------------------------


@dataclass
class _Supplies:
    """Everything that one command puts on its devices."""

    wheelhouse: Path
    files: list[Path]
    inviter: Inviter
    authority: Path | None
    """None if the authority is on another machine."""
    invited: list[DeviceFile] = field(default_factory=list)

    def sign(self, wheels: WheelList) -> bytes:
        """The fleet's signature for a list of wheels."""
        if self.authority is not None:
            return sign_here(self.authority, wheels)
        assert self.inviter.ready is not None
        return signed_elsewhere(self.wheelhouse, wheels, signing_key=self.inviter.ready.signing_key)

    def invite(self, device: str) -> DeviceFile:
        made = self.inviter.invite(device)
        self.invited.append(made)
        return made


@contextmanager
def _supplied(arguments: argparse.Namespace, devices: list[str], *, board_data: str) -> Iterator[_Supplies]:
    """Prepare data, wheels and identities, with the cheapest checks first; tells the user what it found and made."""
    ready = None if arguments.device_file is None else read_device_file(arguments.device_file)
    authority = arguments.fleet_dir if ready is None else None
    if authority is not None:
        check_authority(authority)
    if arguments.wheelhouse is not None and not arguments.wheelhouse.is_dir():
        raise FlashError(f"no wheelhouse {arguments.wheelhouse}; leave out --wheelhouse, and one is made")
    with card_data(arguments.data) as data:
        inviter = Inviter(
            devices=devices,
            authority=arguments.fleet_dir,
            host=arguments.coordinator,
            dataset=data.dataset if data.file is None else f"{board_data}/{data.file.name}",
            share=arguments.share,
            ready=ready,
        )
        _say_data(data, ready)
        wheelhouse = arguments.wheelhouse or kept_wheelhouse(Path.home() / CACHE, wheel=_own_wheel, say=_say)
        if authority is not None:
            _say(record_library(authority, wheelhouse))
        else:
            _say(f"where the authority is, run `sparsyedge coordinator library` on the wheel in {wheelhouse}, and sign")
        yield _Supplies(wheelhouse, [] if data.file is None else [data.file], inviter, authority)


def _say_data(data: CardData, ready: DeviceFile | None) -> None:
    for number, line in enumerate(data.understood):
        _say(f"data: {line}" if number == 0 else f"      {line}")
    if data.understood:
        return
    if ready is None or ready.data is None:
        _say("data: none, so the device does not train before somebody writes its device.toml; --data names some")
    else:
        check_named(ready.data.dataset, ready.device)
        _say(f"data: {ready.data.dataset}, as the device file says; it is not checked here")


def _own_wheel() -> Path:
    return own_wheel(checkout=checkout(), installed=installed_wheel(), say=_say)


def _named_wheel(path: Path | None) -> Path:
    if path is not None and not path.is_file():
        raise FlashError(f"no wheel {path}; make it with `make wheel-aarch64`, or leave out --wheel")
    return path or _own_wheel()


def _wifi(arguments: argparse.Namespace) -> Wifi | None:
    if arguments.wifi_ssid is None:
        if arguments.wifi_password_file is not None:
            raise FlashError("--wifi-password-file needs --wifi-ssid, the name of the network")
        return None
    if arguments.wifi_password_file is None:
        raise FlashError("--wifi-ssid needs --wifi-password-file, so that no password stands in a shell's history")
    try:
        password = arguments.wifi_password_file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FlashError(f"cannot read the Wi-Fi password from {arguments.wifi_password_file}: {error}") from error
    return Wifi.from_password(arguments.wifi_ssid, password, arguments.wifi_country)


def _say(line: str) -> None:
    print(line, flush=True)


def _say_next(steps: Sequence[str]) -> None:
    _say("next:")
    for step in steps:
        _say(textwrap.fill(step, width=80, initial_indent="  ", subsequent_indent="     ", break_on_hyphens=False))


# ---- arguments -------------------------------------------------------------------------------------------------------


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge flash", description="Make cards and phones that become devices of a fleet by themselves."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="SUBCOMMAND")
    pi = commands.add_parser("pi", help="a card from a stock Raspberry Pi OS Lite (64-bit) image")
    pi.add_argument("--image", type=Path, required=True, metavar="IMG", help="the stock image, .img or .img.xz")
    pi.add_argument("--out", type=Path, required=True, metavar="CARD.img", help="the image to make")
    pi.add_argument("--count", type=int, default=1, metavar="N", help="that many cards, with ids counted up")
    pi.add_argument("--wifi-ssid", metavar="NAME", help="the network that the board joins")
    pi.add_argument("--wifi-password-file", type=Path, metavar="FILE", help="its password, in a file")
    pi.add_argument("--wifi-country", default="GB", metavar="CC", help="where the radio is used (default: %(default)s)")
    pi.add_argument("--write", type=Path, metavar="/dev/sdX", help="also write it to this card, after a question")
    _add_identity(pi)
    wheelhouse = commands.add_parser("wheelhouse", help="the wheels that boards install without a network")
    wheelhouse.add_argument("--out", type=Path, required=True, metavar="DIR")
    wheelhouse.add_argument(
        "--python", action="append", choices=PYTHONS, help="of the boards (default: 3.11 and 3.13; repeat for several)"
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
    _add_identity(android)
    return parser


def _add_identity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device-id", required=True, metavar="ID", help="who the device is, e.g. pi-07")
    parser.add_argument("--coordinator", metavar="HOST", help="where it finds the broker (default: as `init` was told)")
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
