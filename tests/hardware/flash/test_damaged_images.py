"""Images that a download or a worn card has damaged: each makes a card or gives one sentence."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from fixtures.stock_images import BOOKWORM, CLUSTERS, RESERVED, SECTOR, START, TABLE_SECTORS, TRIXIE, stock_image

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.card import stock_settings, write_all
from sparsyedge.hardware.flash.first_boot import card_files
from sparsyedge.hardware.flash.firstrun import firstrun_files
from sparsyedge.hardware.flash.stock_image import boot_volume, identify

TABLE = (START + RESERVED) * SECTOR
DATA = (START + RESERVED + 2 * TABLE_SECTORS) * SECTOR
END = DATA + CLUSTERS * SECTOR


def make_card(image: Path) -> None:
    """What `flash pi` does with the boot partition of an image."""
    with boot_volume(image, writable=True) as volume:
        system = identify(volume, image.name)
        files = card_files(0) | {"sparsyedge/wheels/a-wheel-with-a-long-name.whl": bytes(3000)}
        if system.first_boot == "firstrun":
            files |= firstrun_files(stock_settings("pi-07"), volume.read("cmdline.txt") or b"")
        write_all(volume, files)


def patched(image: Path, place: int, content: bytes) -> Path:
    with image.open("r+b") as file:
        file.seek(place)
        file.write(content)
    return image


def sentence(image: Path) -> str:
    with pytest.raises(FlashError) as caught:
        make_card(image)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return stock_image(tmp_path / "os.img", BOOKWORM)


@pytest.mark.parametrize("size", [0, 511, START * SECTOR + 100, TABLE + 6, TABLE + 4002, DATA + 100, END - 1])
def test_a_cut_image_is_named_as_such(image: Path, size: int) -> None:
    with image.open("r+b") as file:
        file.truncate(size)
    said = sentence(image)
    assert f"the file at {size}; download" in said if size > SECTOR else "no partition table" in said


def test_an_image_whose_second_partition_is_cut_is_named_as_such(image: Path) -> None:
    patched(image, 446 + 16, struct.pack("<4xB3xII", 0x83, END // SECTOR, 1_000_000))
    assert f"os.img is cut: its partitions end at byte {END + 1_000_000 * SECTOR}" in sentence(image)


@pytest.mark.parametrize(
    ("place", "layout", "value", "said"),
    [
        (11, "<H", 513, "not FAT32, or damaged"),
        (13, "<B", 0, "not FAT32, or damaged"),
        (13, "<B", 255, "not FAT32, or damaged"),
        (14, "<H", 0, "not FAT32, or damaged"),
        (16, "<B", 200, "not FAT32, or damaged"),
        (32, "<I", 2**32 - 1, "the image is cut"),
        (32, "<I", 1, "FAT12 or FAT16"),
        (36, "<I", 2**32 - 1, "FAT12 or FAT16"),
        (44, "<I", 0, "damaged at cluster 0"),
        (44, "<I", 0x0FFFFFFF, f"damaged at cluster {0x0FFFFFFF}"),
    ],
)
def test_a_boot_sector_that_cannot_be_true_is_refused(
    image: Path, place: int, layout: str, value: int, said: str
) -> None:
    patched(image, START * SECTOR + place, struct.pack(layout, value))
    assert said in sentence(image)


def test_a_folder_that_leads_back_to_itself_is_refused(image: Path) -> None:
    patched(image, TABLE + 4 * 2, struct.pack("<I", 2))
    assert "a file has no end" in sentence(image)


def test_a_file_that_ends_before_its_size_is_refused(image: Path) -> None:
    with boot_volume(image, writable=True) as volume:
        volume.write("long.bin", bytes(5 * SECTOR))
        first = next(entry.cluster for entry in volume._entries(volume._root) if entry.name == "long.bin")
    patched(image, TABLE + 4 * (first + 1), struct.pack("<I", 0x0FFFFFFF))
    with (
        boot_volume(image) as volume,
        pytest.raises(FlashError, match=r"long\.bin on the boot partition ends too early"),
    ):
        volume.read("long.bin")


def test_a_card_whose_files_share_a_cluster_is_not_made(image: Path) -> None:
    make_card(image)
    with boot_volume(image) as volume:
        folder = volume._find_folder(PurePosixPath("sparsyedge"))
        assert folder is not None
        first, second, *_ = (entry.cluster for entry in volume._entries(folder) if entry.name.endswith(".sh"))
    # The first file ends in the second, whose room would be given back twice.
    patched(image, TABLE + 4 * first, struct.pack("<I", second))
    assert "shares its place with another file" in sentence(image)


def test_pieces_of_a_long_name_that_lost_their_file_belong_to_no_other(image: Path) -> None:
    with boot_volume(image, writable=True) as volume:
        volume.write("a-name-of-two-pieces.txt", b"lost")
        entry = next(entry for entry in volume._entries(volume._root) if entry.name.startswith("a-name"))
        folder = bytearray(volume._read_folder(volume._root))
        # Its short entry becomes another file's, as systems without long names leave it behind.
        folder[entry.last : entry.last + 11] = b"KEPT    TXT"
        volume._rewrite_chain(volume._root, bytes(folder))
    with boot_volume(image) as volume:
        assert "KEPT.TXT" in volume.names()
        assert not any(name.startswith("a-name") for name in volume.names())
        assert volume.read("KEPT.TXT") == b"lost"


def test_a_command_line_that_is_no_text_is_kept_as_it_is(image: Path) -> None:
    with boot_volume(image, writable=True) as volume:
        volume.write("cmdline.txt", BOOKWORM["cmdline.txt"].replace(b"quiet", b"qu\xffiet"))
    make_card(image)
    with boot_volume(image) as volume:
        assert b" qu\xffiet " in (volume.read("cmdline.txt") or b"")


def test_flipped_bits_make_a_card_or_a_sentence(tmp_path: Path) -> None:
    rng = random.Random(5)
    image = stock_image(tmp_path / "os.img", TRIXIE)
    with image.open("rb") as file:
        head = file.read(DATA + 40 * SECTOR)
    used = [place for place in range(len(head)) if head[place]]
    made = 0
    for _ in range(60):
        place = rng.choice(used)
        patched(image, 0, head)
        patched(image, place, bytes([head[place] ^ 1 << rng.randrange(8)]))
        # Any other error ends the test.
        with contextlib.suppress(FlashError):
            make_card(image)
            made += 1
    assert 0 < made < 60


def test_the_command_says_one_sentence_about_a_damaged_card(image: Path) -> None:
    patched(image, START * SECTOR + 13, b"\0")
    command = Path(sys.executable).with_name("sparsyedge")
    done = subprocess.run([command, "flash", "verify", str(image)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "not FAT32, or damaged" in done.stderr
