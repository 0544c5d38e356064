"""`sparsyedge flash pi|wheelhouse|verify|android`: one command per card, and no shell on the board."""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

import msgspec

from sparsyedge.edge import cli
from sparsyedge.edge.arguments import Parser
from sparsyedge.edge.config import DataConfig
from sparsyedge.edge.data.loaders import DATASETS
from sparsyedge.edge.enrolment import DEVICE_FILE_NAME, DeviceFile, read_device_file
from sparsyedge.edge.errors import FlashError, SparsyedgeError
from sparsyedge.hardware.flash.android import make_bundle
from sparsyedge.hardware.flash.card import CardPlan, device_names, make_cards
from sparsyedge.hardware.flash.disk import look_up, write_card
from sparsyedge.hardware.flash.first_boot import Wifi
from sparsyedge.hardware.flash.verify import as_utc, inspect_card
from sparsyedge.hardware.flash.wheelhouse import PYTHONS, collect

__all__ = ["main", "make_parser"]

BOARD_DATA = "/var/lib/sparsyedge/data"
"""Where first boot puts the data that came on the card."""


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code; raises SparsyedgeError for a fault that we can name."""
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
    disk = look_up(arguments.write) if arguments.write else None
    files = _data_files(arguments.data)
    inviter = _Inviter(arguments, devices, files, board_data=BOARD_DATA)
    plan = CardPlan(
        image=arguments.image,
        invite=inviter.invite,
        wifi=_wifi(arguments),
        wheelhouse=arguments.wheelhouse,
        data=files,
    )
    for device, path in make_cards(plan, devices, arguments.out):
        print(f"{path}: a card for {device}, {path.stat().st_size / 1e9:.1f} GB", flush=True)
        if disk:
            write_card(path, disk)
            print(f"{disk.path}: written and read back; put the card into {device}", flush=True)
    return 0


def _wheelhouse(arguments: argparse.Namespace) -> int:
    wheels = collect(arguments.out, wheel=_own_wheel(arguments.wheel), pythons=arguments.python or PYTHONS)
    megabytes = sum(wheel.path.stat().st_size for wheel in wheels) / 1e6
    pythons = ", ".join(arguments.python or PYTHONS)
    print(f"{arguments.out}: {len(wheels)} wheels for Python {pythons} on 64-bit ARM, {megabytes:.0f} MB")
    return 0


def _android(arguments: argparse.Namespace) -> int:
    devices = device_names(arguments.device_id, 1)
    files = _data_files(arguments.data)
    inviter = _Inviter(arguments, devices, files, board_data="/root/.local/share/sparsyedge/data")
    path = make_bundle(arguments.out, inviter.invite(devices[0]), wheelhouse=arguments.wheelhouse, data=files)
    print(f"{path}: a bundle for {devices[0]} (experimental); copy it to the phone and run in Termux:")
    print(f"  sh {path.name}")
    return 0


# ---- what a card is given --------------------------------------------------------------------------------------------


class _Inviter:
    """Asks the fleet's authority for an identity per device, through `sparsyedge coordinator token`."""

    def __init__(
        self, arguments: argparse.Namespace, devices: list[str], files: list[Path], *, board_data: str
    ) -> None:
        self._arguments = arguments
        self._devices = devices
        self._dataset = f"{board_data}/{files[0].name}" if files else arguments.data
        self._ready = None if arguments.device_file is None else read_device_file(arguments.device_file)
        if self._ready is not None:
            _check_ready(self._ready, devices)

    def invite(self, device: str) -> DeviceFile:
        """The device's file, with the host that the user named and the data that travels with it."""
        made = self._ready or self._ask(device)
        host = self._arguments.coordinator or made.host
        data = made.data
        if self._dataset and self._ready is not None:
            data = DataConfig(dataset=self._dataset, partition=data.partition if data else None)
        return msgspec.structs.replace(made, host=host, data=data)

    def _ask(self, device: str) -> DeviceFile:
        arguments = self._arguments
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / DEVICE_FILE_NAME
            command = ["coordinator", "token", device, "--dir", str(arguments.fleet_dir), "--out", str(path)]
            command += ["--dataset", self._dataset] if self._dataset else []
            command += ["--share", _share(arguments.share, self._devices.index(device))] if arguments.share else []
            errors = io.StringIO()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                code = cli.main(command)
            if code:
                raise SparsyedgeError(errors.getvalue().strip().removeprefix("sparsyedge: error: "))
            return read_device_file(path)


def _check_ready(ready: DeviceFile, devices: list[str]) -> None:
    if devices != [ready.device]:
        raise FlashError(
            f"the device file is for {ready.device} and the card for {', '.join(devices)}; "
            "make one file per device, or leave out --device-file"
        )
    if ready.token is None:
        raise FlashError(
            f"the file of {ready.device} has no token any more; make another with "
            f"`sparsyedge coordinator token {ready.device}`"
        )
    if ready.token_until is not None and ready.token_until < time.time():
        raise FlashError(
            f"the token in the file of {ready.device} expired at {as_utc(ready.token_until)}; make another with "
            f"`sparsyedge coordinator token {ready.device}`"
        )


def _share(first: str, offset: int) -> str:
    index, _, devices = first.partition("/")
    return f"{int(index) + offset}/{devices}" if index.isdecimal() else first


def _data_files(data: str | None) -> list[Path]:
    """The files that travel with the card: an .npz, or the one .npz of a folder; none for the name of a data set."""
    if data is None or data in DATASETS:
        return []
    if not (Path(data).exists() or "/" in data or data.endswith(".npz")):
        raise FlashError(f"--data is {data!r}, allowed are an .npz file, a folder with one, or {', '.join(DATASETS)}")
    path = Path(data)
    found = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if len(found) != 1 or not found[0].is_file():
        raise FlashError(f"--data {data} has {len(found)} .npz files, needed is one; name the file, or a data set")
    return found


def _own_wheel(path: Path | None) -> Path:
    if path is not None:
        if not path.is_file():
            raise FlashError(f"no wheel {path}; make it with `make wheel-aarch64`")
        return path
    built = sorted(Path("dist").glob("sparsyedge-*aarch64.whl"), key=lambda wheel: wheel.stat().st_mtime_ns)
    if not built:
        raise FlashError(
            "no sparsyedge wheel for aarch64 in ./dist; make it with `make wheel-aarch64`, or name --wheel"
        )
    return built[-1]


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
        "--wheel", type=Path, metavar="FILE", help="ours for aarch64 (default: the newest in dist/)"
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
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="of `flash wheelhouse`; without it, from PyPI")
    parser.add_argument("--data", metavar="DIR|NAME", help="an .npz that travels along, or a data set's name")
    parser.add_argument(
        "--share", metavar="INDEX/DEVICES", help="one LDA share of the data set, counted up with --count"
    )
