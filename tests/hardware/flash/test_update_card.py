"""Cards that were made before: other settings, the same device, and the old card or the new one if the power fails."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fixtures.cards import a_plan, invited, make
from fixtures.stock_images import BOOKWORM, TRIXIE, stock_image

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile
from sparsyedge.hardware.flash import update_card as updating
from sparsyedge.hardware.flash.card_record import RECORD_NAME, CardRecord
from sparsyedge.hardware.flash.card_settings import CardSettings, Wifi
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.partitions import boot_partition
from sparsyedge.hardware.flash.read_back import inspect_card
from sparsyedge.hardware.flash.stock_image import boot_volume
from sparsyedge.hardware.flash.update_card import CardChange, read_card, update_card

WIFI = Wifi(ssid="new", psk="ab" * 32)


def settings(device: str) -> CardSettings:
    return CardSettings(hostname="kitchen", time_zone="Europe/Berlin", device={"threads": 2})


def moved(record: CardRecord) -> CardSettings:
    """The settings of a card in another network."""
    return msgspec.structs.replace(record.settings, hostname="cellar", wifi=(WIFI,), wifi_country="DE")


@pytest.fixture(params=["trixie", "bookworm"])
def card(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    image = stock_image(tmp_path / f"{request.param}.img", {"trixie": TRIXIE, "bookworm": BOOKWORM}[request.param])
    (card,) = make(a_plan(image, invite=invited, settings=settings), tmp_path / "card.img")
    return card


def boot(card: Path) -> None:
    """Leave on the boot partition what a board does that has enrolled."""
    with boot_volume(card, writable=True) as volume:
        folder = volume._root
        content = bytearray(volume._read_folder(folder))
        for name in (DEVICE_FILE_NAME, "firstrun.sh"):
            entry = volume._entry(folder, name)
            if entry is not None:
                for place in range(entry.first, entry.last + 1, 32):
                    content[place] = 0xE5
        volume._rewrite_chain(folder, bytes(content))
        line = (volume.read("cmdline.txt") or b"").split()
        kept = [word for word in line if not word.startswith((b"systemd.", b"init="))]
        volume.write("cmdline.txt", b" ".join(kept) + b"\n")


def trigger(card: Path) -> bytes:
    name = "meta-data" if read_card(card).release == "trixie" else "cmdline.txt"
    with boot_volume(card) as volume:
        return volume.read(name) or b""


def test_an_unused_card_has_the_new_settings_and_its_old_token(card: Path) -> None:
    before = inspect_card(card)
    updated = update_card(card, CardChange(settings=moved))
    report = inspect_card(card)
    assert (report.settings.hostname, report.settings.wifi) == ("cellar", (WIFI,))
    assert (report.settings.time_zone, report.settings.device) == ("Europe/Berlin", {"threads": 2})
    assert (report.device, report.wheels) == (before.device, before.wheels)
    assert updated.device == before.device
    assert card.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in card.parent.iterdir() if path.name.startswith(".")] == []


def test_a_board_that_has_enrolled_gets_settings_and_no_identity(card: Path) -> None:
    boot(card)
    before = trigger(card)
    updated = update_card(card, CardChange(settings=moved))
    assert updated.device is None
    assert trigger(card) != before, "the board would not notice"
    with boot_volume(card) as volume:
        assert volume.read(DEVICE_FILE_NAME) is None
        applied = volume.read("user-data" if updated.record.release == "trixie" else "firstrun.sh") or b""
    assert b"cellar" in applied
    assert b"install.sh" in applied


def test_a_new_token_leaves_the_data_as_it_was(card: Path) -> None:
    def again(device: str) -> DeviceFile:
        return msgspec.structs.replace(invited(device), token="n" * 43, data=None)

    update_card(card, CardChange(settings=lambda record: record.settings, invite=again))
    device = inspect_card(card).device
    assert (device.token, device.data) == ("n" * 43, invited("pi-07").data)
    boot(card)
    updated = update_card(card, CardChange(settings=lambda record: record.settings, invite=again))
    assert updated.device is not None
    assert (updated.device.token, updated.device.data) == ("n" * 43, None)


def test_a_token_of_another_fleet_is_refused(card: Path) -> None:
    content = card.read_bytes()

    def stranger(device: str) -> DeviceFile:
        return msgspec.structs.replace(invited(device), fleet="other")

    with pytest.raises(FlashError, match="the card is of fleet lab and the authority of fleet other"):
        update_card(card, CardChange(settings=moved, invite=stranger))
    assert card.read_bytes() == content


def test_another_coordinator_is_in_the_device_file_or_in_device_toml(card: Path) -> None:
    update_card(card, CardChange(settings=lambda record: record.settings, host="10.0.0.9"))
    assert inspect_card(card).device.host == "10.0.0.9"
    boot(card)
    updated = update_card(card, CardChange(settings=lambda record: record.settings, host="10.0.0.8"))
    assert updated.record.settings.device == {"threads": 2, "broker": {"host": "10.0.0.8"}}


def _stock(folder: Path) -> Path:
    return stock_image(folder / "os.img", TRIXIE)


def _older(folder: Path) -> Path:
    return stock_image(folder / "os.img", {**TRIXIE, "sparsyedge/install.sh": b"#!/bin/sh\n"})


def _damaged(folder: Path) -> Path:
    return stock_image(folder / "os.img", {**TRIXIE, RECORD_NAME: b'{"version": 2}'})


def _text(folder: Path) -> Path:
    (folder / "os.img").write_text("not a card" * 1000)
    return folder / "os.img"


@pytest.mark.parametrize(
    ("make_card", "sentence"),
    [
        (_stock, "is not a card that `flash pi` made"),
        (_older, "was made by a version before 0.4"),
        (_damaged, "card.json on .* cannot be read"),
        (_text, "has no partition table"),
    ],
)
def test_what_is_not_our_card_is_refused_and_left_alone(
    tmp_path: Path, make_card: Callable[[Path], Path], sentence: str
) -> None:
    path = make_card(tmp_path)
    content = path.read_bytes()
    with pytest.raises(FlashError, match=sentence):
        update_card(path, CardChange(settings=moved))
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["os.img"]


def test_a_full_boot_partition_leaves_the_image_as_it_was(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = card.read_bytes()
    monkeypatch.setattr(FatVolume, "free_bytes", property(lambda volume: 1000))
    with pytest.raises(FlashError, match="boot partition has 0 MB free"):
        update_card(card, CardChange(settings=moved))
    assert card.read_bytes() == content


@pytest.fixture
def disk(card: Path) -> Iterator[Path]:
    """The card as a disk of this machine."""
    program = shutil.which("losetup", path="/usr/sbin:/sbin:/usr/bin")
    made = program and subprocess.run([program, "--find", "--show", card], capture_output=True, text=True, timeout=300)
    if not program or not made or made.returncode != 0:
        pytest.skip("no loop devices here, or no right to use them")
    try:
        yield Path(made.stdout.strip())
    finally:
        subprocess.run([program, "--detach", made.stdout.strip()], check=True, timeout=300)


def test_a_card_on_a_disk_is_changed_in_place(disk: Path, card: Path, tmp_path: Path) -> None:
    update_card(disk, CardChange(settings=moved))
    assert inspect_card(disk).settings.hostname == inspect_card(card).settings.hostname == "cellar"
    fsck = shutil.which("fsck.vfat", path="/usr/sbin:/sbin")
    if fsck is not None:
        with card.open("rb") as file:
            file.seek(boot_partition(file, "card").start)
            (tmp_path / "partition").write_bytes(file.read())
        subprocess.run([fsck, "-n", tmp_path / "partition"], check=True, capture_output=True, timeout=300)


class WornDisk(io.BytesIO):
    """A disk that notes in which order sectors reach it; a write lasts once it has been synced."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.log: list[tuple[int, bytes]] = []
        self.synced: list[int] = []

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.log.append((self.tell(), bytes(data)))
        return super().write(data)

    def sync(self) -> None:
        self.synced.append(len(self.log))


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_whenever_the_power_fails_a_disk_has_the_old_card_or_the_new_one(card: Path, used: bool) -> None:
    if used:
        boot(card)
    content = card.read_bytes()
    disk = WornDisk(content)
    volume = FatVolume(disk, boot_partition(disk, "card").start, sync=disk.sync)
    updating._update(volume, card, CardChange(settings=moved))
    volume.flush()
    names = [name for name in volume.names() if volume.read(name) is not None]
    names += [f"sparsyedge/{name}" for name in volume.names("sparsyedge") if name not in ("wheels", "data")]
    last = "meta-data" if read_card(card).release == "trixie" else "cmdline.txt"

    def files(image: io.BytesIO) -> dict[str, bytes | None]:
        found = FatVolume(image, boot_partition(image, "card").start)
        return {name: found.read(name) for name in names}

    image = io.BytesIO(content)
    old, new = files(image), files(disk)
    assert old != new
    seen_new = 0
    for place, data in disk.log:
        # A disk writes whole sectors. Of a table, half of which is written, no more can be seen than of all of it.
        step = 512 if len(data) <= 4096 else len(data)
        for start in range(0, len(data), step):
            image.seek(place + start)
            image.write(data[start : start + step])
            now = files(image)
            for name in names:
                assert now[name] in (old[name], new[name]), f"{name} is neither the old nor the new one"
            # An unused card of Bookworm would have acted on firstrun.sh anyway.
            if now[last] == new[last] != old[last]:
                assert now == new, "the board would act on half an update"
            seen_new += now == new
    assert seen_new
    assert len(disk.synced) >= 4
