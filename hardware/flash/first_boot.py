"""The files of every card, whatever its system: the program of the first boot and the services.

A stock image runs them by its own means (cloud_init.py for Trixie, firstrun.py for Bookworm). Both only apply the
card's settings and install services (card/install.sh). The first boot itself is in card/firstboot.sh, the same for
both, so supporting another way to customise images takes one more module beside those two.
"""

from __future__ import annotations

from pathlib import Path

from sparsyedge.edge.upgrade import launch

__all__ = ["BOOT", "CARD_FOLDER", "FLASHED_AT_NAME", "LAUNCHER", "card_files"]

CARD_FOLDER = "sparsyedge"
FLASHED_AT_NAME = f"{CARD_FOLDER}/flashed_at"
"""When the card was last written, in seconds since 1970."""
BOOT = "/boot/firmware"
LAUNCHER = Path(launch.__file__)
"""What starts the device, outside of all that an upgrade replaces."""
_SOURCE = Path(__file__).with_name("card")


def card_files(flashed_at: int) -> dict[str, bytes]:
    """The files on every card, whatever its system: the first-boot program and the services."""
    paths = [*sorted(_SOURCE.iterdir()), LAUNCHER]
    files = {f"{CARD_FOLDER}/{path.name}": path.read_bytes() for path in paths}
    return {**files, FLASHED_AT_NAME: f"{flashed_at}\n".encode()}
