"""`sparsyedge flash pi`: cards from a stock image, or other settings for a card that was made before."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.card import CardPlan, make_cards
from sparsyedge.hardware.flash.card_record import CardRecord
from sparsyedge.hardware.flash.card_settings import CardSettings
from sparsyedge.hardware.flash.disk import look_up, write_card
from sparsyedge.hardware.flash.fleet_authority import Inviter, check_authority
from sparsyedge.hardware.flash.next_steps import after_cards, after_update
from sparsyedge.hardware.flash.pi_options import boards_of
from sparsyedge.hardware.flash.supplies import say, supplied
from sparsyedge.hardware.flash.update_card import CardChange, read_card, update_card

__all__ = ["add_image", "make_or_update", "say_next"]

BOARD_DATA = "/var/lib/sparsyedge/data"
"""Where first boot puts the data that came on the card."""


def make_or_update(arguments: argparse.Namespace) -> int:
    """Make cards, or change one with --update; raises SparsyedgeError for known failures."""
    return _make(arguments) if arguments.update is None else _update(arguments)


def _make(arguments: argparse.Namespace) -> int:
    for name in ("image", "out"):
        if getattr(arguments, name) is None:
            raise FlashError(f"--{name} is missing: a card is made from a stock --image, as a new image --out")
    if arguments.new_token:
        raise FlashError("--new-token is for --update; a new card has a new token anyway")
    boards = boards_of(arguments)
    if arguments.write and len(boards.devices) > 1:
        raise FlashError("--write fills one card and there are several; write them one by one")
    if not arguments.image.is_file():
        raise FlashError(f"no image {arguments.image}; check the path")
    disk = look_up(arguments.write) if arguments.write else None
    settings = {device: boards.settings(device) for device in boards.devices}
    lives = {device: boards.token_life(device) for device in boards.devices}
    _check_addresses(settings)
    with supplied(
        arguments, boards.devices, board_data=BOARD_DATA, ready=boards.ready, token_life=lives.__getitem__
    ) as supplies:
        plan = CardPlan(
            image=arguments.image,
            invite=supplies.invite,
            settings=settings.__getitem__,
            wheelhouse=supplies.wheelhouse,
            sign=supplies.sign,
            data=supplies.files,
        )
        cards = []
        for device, path in make_cards(plan, boards.devices, arguments.out):
            cards.append(path)
            say(f"{path}: a card for {device}, {path.stat().st_size / 1e9:.1f} GB")
            if disk:
                write_card(path, disk)
                say(f"{disk.path}: written and read back")
    steps = after_cards(
        cards,
        supplies.invited,
        authority=supplies.authority,
        has_wifi=all(one.wifi for one in settings.values()),
        written=disk is not None,
    )
    say_next(steps)
    return 0


def _update(arguments: argparse.Namespace) -> int:
    for name in ("image", "out", "write", "data", "share"):
        if getattr(arguments, name) is not None:
            raise FlashError(f"--{name} is for a new card; leave it out with --update, which keeps the system and data")
    path = arguments.update
    if not path.exists():
        raise FlashError(f"no card {path}; name an image that `flash pi` made, or the disk of a card")
    if path.is_block_device():
        say(f"{look_up(path)}: a card in this machine")
    record = read_card(path)
    if arguments.device_id not in (None, record.device):
        raise FlashError(f"{path} is the card of {record.device}, not of {arguments.device_id}; nothing was changed")
    boards = boards_of(arguments, device=record.device)
    life = boards.token_life(record.device)
    wants_token = arguments.new_token or life is not None or bool(boards.ready)
    if wants_token and not boards.ready:
        check_authority(arguments.fleet_dir)

    def settings(before: CardRecord) -> CardSettings:
        return boards.settings(before.device, before.settings)

    inviter = Inviter(
        devices=[record.device],
        authority=arguments.fleet_dir,
        host=arguments.coordinator,
        ready=boards.ready,
        token_life=lambda device: life,
    )
    change = CardChange(settings=settings, invite=inviter.invite if wants_token else None, host=arguments.coordinator)
    updated = update_card(path, change)
    say(f"{path}: changed the card of {record.device}")
    say_next(after_update(path, updated.record.device, updated.device))
    return 0


def _check_addresses(settings: dict[str, CardSettings]) -> None:
    """Refuse two boards with one address or one name."""
    owners: dict[str, str] = {}
    for device, one in settings.items():
        names = [f"host name {one.hostname.lower()}"]
        names += [f"address {text.split('/')[0]}" for text in (one.address.addresses if one.address else ())]
        for name in names:
            if name in owners:
                raise FlashError(f"{owners[name]} and {device} would both have {name}; give each its own in --card")
            owners[name] = device


def say_next(steps: Sequence[str]) -> None:
    """Tell the user what to do next."""
    say("next:")
    for step in steps:
        say(textwrap.fill(step, width=80, initial_indent="  ", subsequent_indent="     ", break_on_hyphens=False))


def add_image(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say which card."""
    parser.add_argument("--image", type=Path, metavar="IMG", help="the stock image, .img or .img.xz")
    parser.add_argument("--out", type=Path, metavar="CARD.img", help="the image to make")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="that many cards, with ids counted up")
    parser.add_argument("--card", type=Path, metavar="CARD.toml", help="settings of one or many boards, in a file")
    parser.add_argument("--write", type=Path, metavar="/dev/sdX", help="also write it to this card, after a question")
    parser.add_argument(
        "--update",
        type=Path,
        metavar="CARD.img|/dev/sdX",
        help="change settings of this card, made before, and leave identity and data alone",
    )
    parser.add_argument("--new-token", action="store_true", help="with --update: have the device enrol again")
