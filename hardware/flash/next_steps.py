"""Tells the user what to do next with a card or bundle: where it goes, what to expect, how to see the device join."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsyedge.edge.security.enrolment_messages import DeviceFile
from sparsyedge.hardware.flash.read_back import as_utc

__all__ = ["after_bundle", "after_cards", "after_update"]


def after_cards(
    cards: Sequence[Path], devices: Sequence[DeviceFile], *, authority: Path | None, has_wifi: bool, written: bool
) -> list[str]:
    """The steps from card images to members of the fleet."""
    first, several = devices[0], len(devices) > 1
    what = "each image to a card of its own" if several else f"{cards[0].name} to a card"
    write = f'Write {what}: in Raspberry Pi Imager choose "Use custom" and change no settings.'
    if not several:
        write += " (With --write /dev/sdX this command does it.)"
    place = "the cards into their boards" if several else f"the card into {first.device}"
    network = "a network cable or that Wi-Fi" if has_wifi else "a network cable"
    return _numbered(
        [
            *([] if written else [write]),
            f"Put {place}, with {network} there, and switch on{_before(first)}.",
            "Wait some minutes (13 on an emulated board): the first boot installs, enrols and joins by itself.",
            *_joining(first, authority),
            "If it does not, look at the card in a computer: sparsyedge-error.txt on its boot partition says what "
            f"failed. Without that file the board did not boot, or still tries: it must reach {_ports(first)}.",
        ]
    )


def after_update(card: Path, name: str, device: DeviceFile | None) -> list[str]:
    """The steps from a changed card to a board that acts on it."""
    write = [] if card.is_block_device() else [f"Write {card.name} to its card, unless the card is the image itself."]
    enrols = f", enrols{_before(device)}" if device is not None else ""
    return _numbered(
        [
            *write,
            f"Put the card into {name} and switch on: it acts on the new settings at its next start{enrols} and goes "
            "on training with the data that it has.",
        ]
    )


def after_bundle(bundle: Path, device: DeviceFile, *, authority: Path | None) -> list[str]:
    """The steps from a bundle to a member of the fleet."""
    return _numbered(
        [
            f"Copy {bundle.name} to the phone and run `sh {bundle.name}` in Termux (from F-Droid, with the apps "
            f"Termux:API and Termux:Boot){_before(device)}.",
            "Wait some minutes: it downloads a Debian, installs, enrols and joins. It trains on a charger and Wi-Fi.",
            *_joining(device, authority),
            "If it does not, Termux shows what failed, and later ~/sparsyedge/device.log: it must reach "
            f"{_ports(device)}.",
        ]
    )


def _before(device: DeviceFile) -> str:
    return f" before {as_utc(device.token_until)}, when the token expires" if device.token_until is not None else ""


def _ports(device: DeviceFile) -> str:
    if device.others:
        places = [f"{device.host}:{device.port}", *(f"{broker.host}:{broker.port}" for broker in device.others)]
        return f"one of {', '.join(places)}"
    announced = ", or be in one network with a coordinator that announces itself" if device.find else ""
    return f"{device.host}, ports {device.port} and {device.enrol_port}{announced}"


def _joining(device: DeviceFile, authority: Path | None) -> list[str]:
    folder = "" if authority is None else f" --dir {authority}"
    return [
        f"{'Here' if authority else 'Where the authority is'}, keep `sparsyedge coordinator broker{folder}` running, "
        f"and `sparsyedge coordinator enrol{folder}` or a run, which let new devices in.",
        f"See it join: `sparsyedge coordinator identities{folder}` lists {device.device} as a member, and during a run "
        "`sparsyedge coordinator devices RUN_DIR` shows it online.",
    ]


def _numbered(lines: Sequence[str]) -> list[str]:
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
