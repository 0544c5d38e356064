"""Gets what a card needs from the fleet's authority: an identity, a record of its op library, and signed wheels.

It runs `sparsyedge coordinator` commands, because this folder may import only edge.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sparsyedge.edge import cli
from sparsyedge.edge.config import DataConfig
from sparsyedge.edge.errors import FlashError, SecurityError, SparsyedgeError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile, read_device_file
from sparsyedge.edge.security.wheel_list import check_list
from sparsyedge.hardware.flash.read_back import as_utc
from sparsyedge.hardware.flash.wheel_hashes import WheelList, write_lists

__all__ = ["Inviter", "check_authority", "check_ready", "record_library", "sign_here", "signed_elsewhere"]


@dataclass(frozen=True, kw_only=True)
class Inviter:
    """Gives every device in a series its identity: a new one from the authority, or one made elsewhere."""

    devices: list[str]
    authority: Path
    host: str | None
    dataset: str | None = None
    share: str | None = None
    ready: Mapping[str, DeviceFile] = field(default_factory=dict)
    """Files that were made elsewhere, by device: for all of the series or for none."""
    token_life: Callable[[str], str | None] = lambda device: None

    def __post_init__(self) -> None:
        if not self.ready:
            return
        check_ready(self.ready, self.devices)
        if self.share is not None:
            raise FlashError("--share goes into a new device file; make that with `coordinator token --share` instead")
        if any(self.token_life(device) is not None for device in self.devices):
            raise FlashError("a token's life is chosen where it is made: `coordinator token --life`")

    def invite(self, device: str) -> DeviceFile:
        """The device's file, with the user's choice of host and the card's data set."""
        made = self.ready.get(device) or self._ask(device)
        if self.host is not None and made.others:
            raise FlashError(
                f"--coordinator is {self.host}, but the broker is a cluster, and the device file names its nodes; "
                f"leave it out"
            )
        data = made.data
        if self.dataset and self.ready:
            data = DataConfig(dataset=self.dataset, partition=data.partition if data else None)
        return msgspec.structs.replace(made, host=self.host or made.host, find=self._finds(made), data=data)

    def _finds(self, made: DeviceFile) -> bool:
        """Whether the device looks for the broker on its network (mDNS); a file from elsewhere says so itself."""
        if self.host is not None:
            return False
        # Who names no host may also mean one whose address changes; the nodes of a cluster are not announced.
        return made.find if self.ready else not made.others

    def _ask(self, device: str) -> DeviceFile:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / DEVICE_FILE_NAME
            command = ["token", device, "--dir", str(self.authority), "--out", str(path)]
            command += ["--dataset", self.dataset] if self.dataset else []
            command += ["--share", _share(self.share, self.devices.index(device))] if self.share else []
            life = self.token_life(device)
            command += ["--life", life] if life is not None else []
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


def check_ready(ready: Mapping[str, DeviceFile], devices: Sequence[str]) -> None:
    """Raise FlashError unless these files are for exactly these devices, of one fleet, with tokens that are good."""
    if sorted(ready) != sorted(devices):
        raise FlashError(
            f"device files are for {', '.join(ready)} and cards for {', '.join(devices)}; make one file per device, "
            "or leave them out"
        )
    if len({file.signing_key for file in ready.values()}) > 1:
        raise FlashError("the device files are of several fleets; make the cards of each fleet by themselves")
    for device, file in ready.items():
        _check_token(device, file)


def _check_token(device: str, file: DeviceFile) -> None:
    if file.token is None:
        raise FlashError(
            f"the file of {device} has no token any more; make another with `sparsyedge coordinator token {device}`"
        )
    if file.token_until is not None and file.token_until < time.time():
        raise FlashError(
            f"the token in the file of {device} expired at {as_utc(file.token_until)}; make another with "
            f"`sparsyedge coordinator token {device}`"
        )


def _share(first: str, offset: int) -> str:
    index, _, devices = first.partition("/")
    return f"{int(index) + offset}/{devices}" if index.isdecimal() else first
