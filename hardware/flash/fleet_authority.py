"""Gets what a card needs from the fleet's authority: an identity, a record of its op library, and signed wheels.

It runs `sparsyedge coordinator` commands, because this folder may import only edge.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparsyedge.edge import cli
from sparsyedge.edge.config import DataConfig
from sparsyedge.edge.errors import FlashError, SecurityError, SparsyedgeError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile, read_device_file
from sparsyedge.edge.security.wheel_list import check_list
from sparsyedge.hardware.flash.read_back import as_utc
from sparsyedge.hardware.flash.wheel_hashes import WheelList, write_lists

__all__ = ["Inviter", "check_authority", "record_library", "sign_here", "signed_elsewhere"]


@dataclass(frozen=True)
class Inviter:
    """Gives every device in a series its identity: a new one from the authority, or one made elsewhere."""

    devices: list[str]
    authority: Path
    host: str | None
    dataset: str | None
    share: str | None
    ready: DeviceFile | None = None

    def __post_init__(self) -> None:
        if self.ready is None:
            return
        _check_ready(self.ready, self.devices)
        if self.share is not None:
            raise FlashError("--share goes into a new device file; make that with `coordinator token --share` instead")

    def invite(self, device: str) -> DeviceFile:
        """The device's file, with the user's choice of host and the card's data set."""
        made = self.ready or self._ask(device)
        if self.host is not None and made.others:
            raise FlashError(
                f"--coordinator is {self.host}, but the broker is a cluster, and the device file names its nodes; "
                f"leave it out"
            )
        data = made.data
        if self.dataset and self.ready is not None:
            data = DataConfig(dataset=self.dataset, partition=data.partition if data else None)
        return msgspec.structs.replace(made, host=self.host or made.host, data=data)

    def _ask(self, device: str) -> DeviceFile:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / DEVICE_FILE_NAME
            command = ["token", device, "--dir", str(self.authority), "--out", str(path)]
            command += ["--dataset", self.dataset] if self.dataset else []
            command += ["--share", _share(self.share, self.devices.index(device))] if self.share else []
            _coordinator(*command)
            return read_device_file(path)


def check_authority(folder: Path) -> None:
    """Raise SparsyedgeError if there is no authority; call it before building anything."""
    _coordinator("library", "--dir", str(folder))


def record_library(folder: Path, wheelhouse: Path) -> str:
    """Record the wheelhouse's op library with the authority, for `sign`; returns the authority's message."""
    return _coordinator("library", str(wheelhouse), "--dir", str(folder)).rstrip()


def sign_here(folder: Path, wheels: WheelList) -> bytes:
    """The list's signature by the authority in `folder`."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / wheels.name
        path.write_bytes(wheels.content)
        _coordinator("sign-wheels", place, "--dir", str(folder))
        return path.with_name(f"{path.name}.sig").read_bytes()


def signed_elsewhere(wheelhouse: Path, wheels: WheelList, *, signing_key: str) -> bytes:
    """The signature in the wheelhouse, made on the authority's machine; raises FlashError if missing or invalid."""
    path = wheelhouse / f"{wheels.name}.sig"
    try:
        signature = path.read_bytes()
        check_list(wheels.content, signature, signing_key=signing_key, name=wheels.name)
    except (OSError, SecurityError) as error:
        write_lists(wheelhouse)
        raise FlashError(
            f"the wheels in {wheelhouse} are not signed by this device's fleet, so it would not install them; copy "
            f"{wheels.name} from there to where the authority is, run `sparsyedge coordinator sign-wheels FOLDER` on "
            f"its folder, and bring {path.name} back"
        ) from error
    return signature


def _coordinator(*command: str) -> str:
    """Run `sparsyedge coordinator ...` and return its output; raises SparsyedgeError with its message if it fails."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = cli.main(["coordinator", *command])
    if code:
        raise SparsyedgeError(errors.getvalue().strip().removeprefix("sparsyedge: error: "))
    return output.getvalue()


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
