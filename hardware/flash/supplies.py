"""Everything that one `flash` command puts on its devices: data, wheels, identities, and the fleet's signature."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.installation import checkout, installed_wheel
from sparsyedge.edge.security.enrolment_messages import DeviceFile
from sparsyedge.hardware.flash.card_data import CardData, card_data, check_named
from sparsyedge.hardware.flash.fleet_authority import (
    Inviter,
    check_authority,
    record_library,
    sign_here,
    signed_elsewhere,
)
from sparsyedge.hardware.flash.own_wheel import own_wheel
from sparsyedge.hardware.flash.wheel_cache import CACHE, kept_wheelhouse
from sparsyedge.hardware.flash.wheel_hashes import WheelList

__all__ = ["Supplies", "build_wheel", "say", "supplied"]


@dataclass
class Supplies:
    """What is at hand for the devices of one command."""

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
        key = next(iter(self.inviter.ready.values())).signing_key
        return signed_elsewhere(self.wheelhouse, wheels, signing_key=key)

    def invite(self, device: str) -> DeviceFile:
        """A device's identity, which is also kept here."""
        made = self.inviter.invite(device)
        self.invited.append(made)
        return made


@contextmanager
def supplied(
    arguments: argparse.Namespace,
    devices: list[str],
    *,
    board_data: str,
    ready: Mapping[str, DeviceFile],
    token_life: Callable[[str], str | None] = lambda device: None,
) -> Iterator[Supplies]:
    """Prepare data, wheels and identities, with the cheapest checks first; tells the user what it found and made."""
    authority = arguments.fleet_dir if not ready else None
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
            token_life=token_life,
        )
        _say_data(data, ready)
        wheelhouse = arguments.wheelhouse or kept_wheelhouse(Path.home() / CACHE, wheel=build_wheel, say=say)
        if authority is not None:
            say(record_library(authority, wheelhouse))
        else:
            say(f"where the authority is, run `sparsyedge coordinator library` on the wheel in {wheelhouse}, and sign")
        yield Supplies(wheelhouse, [] if data.file is None else [data.file], inviter, authority)


def build_wheel() -> Path:
    """Our wheel for boards, built if a source is newer."""
    return own_wheel(checkout=checkout(), installed=installed_wheel(), say=say)


def say(line: str) -> None:
    """Tell the user."""
    print(line, flush=True)


def _say_data(data: CardData, ready: Mapping[str, DeviceFile]) -> None:
    for number, line in enumerate(data.understood):
        say(f"data: {line}" if number == 0 else f"      {line}")
    if data.understood:
        return
    named = {device: file.data.dataset for device, file in ready.items() if file.data is not None}
    if not named:
        say("data: none, so the device does not train before somebody writes its device.toml; --data names some")
    for device, dataset in named.items():
        check_named(dataset, device)
        say(f"data: {dataset}, as the device file of {device} says; it is not checked here")
