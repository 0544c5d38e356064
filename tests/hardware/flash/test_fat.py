from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from fixtures.stock_images import CLUSTERS, SECTOR, START, format_fat32

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.stock_image import boot_volume

LONG = "onnxruntime-1.23.2-cp313-cp313-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    image = format_fat32(tmp_path / "card.img")
    rng = random.Random(7)
    files = {f"sparsyedge/wheels/{number}-{LONG}": rng.randbytes(rng.randrange(9000)) for number in range(40)}
    files |= {"user-data": b"#cloud-config\n", "empty": b"", "exactly": bytes(SECTOR)}
    with boot_volume(image, writable=True) as volume:
        for name, content in files.items():
            volume.write(name, content)
    with boot_volume(image) as volume:
        assert {name: volume.read(name) for name in files} == files
        assert volume.names() == ["sparsyedge", "user-data", "empty", "exactly"]
        assert len(volume.names("sparsyedge/wheels")) == 40


def test_a_replaced_file_gives_its_room_back(tmp_path: Path) -> None:
    image = format_fat32(tmp_path / "card.img")
    with boot_volume(image, writable=True) as volume:
        volume.write("cmdline.txt", bytes(10 * SECTOR))
        free = volume.free_bytes
        for _ in range(3):
            volume.write("cmdline.txt", b"short")
        assert volume.read("CMDLINE.TXT") == b"short"
        volume.flush()
        assert volume.free_bytes == free + 9 * SECTOR


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    image = format_fat32(tmp_path / "card.img")
    with boot_volume(image) as volume, pytest.raises(FlashError, match="boot partition is full"):
        volume.write("huge", bytes((CLUSTERS + 1) * SECTOR))


def test_absent_files_and_folders_are_none_and_empty(tmp_path: Path) -> None:
    with boot_volume(format_fat32(tmp_path / "card.img")) as volume:
        assert volume.read("no/such/file") is None
        assert volume.names("no") == []


def test_a_folder_is_not_overwritten_by_a_file_nor_the_other_way_round(tmp_path: Path) -> None:
    with boot_volume(format_fat32(tmp_path / "card.img"), writable=True) as volume:
        volume.write("folder/file", b"1")
        with pytest.raises(FlashError, match="is a folder and must be a file"):
            volume.write("folder", b"2")
        with pytest.raises(FlashError, match="is a file and must be a folder"):
            volume.write("folder/file/below", b"3")


def test_a_partition_that_is_no_fat32_is_refused(tmp_path: Path) -> None:
    image = tmp_path / "card.img"
    image.write_bytes(bytes(4096))
    with image.open("rb") as file, pytest.raises(FlashError, match="has no FAT file system"):
        FatVolume(file, 0)
    format_fat32(image, clusters=1000)
    with image.open("rb") as file, pytest.raises(FlashError, match="FAT12 or FAT16, allowed is FAT32"):
        FatVolume(file, START * SECTOR)


def test_a_chain_without_an_end_is_refused(tmp_path: Path) -> None:
    image = format_fat32(tmp_path / "card.img")
    with boot_volume(image, writable=True) as volume:
        volume.write("file", bytes(3 * SECTOR))
        first = volume._table[:]
        end = max(cluster for cluster, link in enumerate(first) if link)
        volume._table[end - 1] = end - 1
        with pytest.raises(FlashError, match="damaged: a file has no end"):
            volume.read("file")
        volume._table[end - 1] = first[end - 1]


@pytest.mark.skipif(shutil.which("fsck.vfat") is None or shutil.which("mcopy") is None, reason="no dosfstools, mtools")
def test_other_programs_find_our_file_system_whole(tmp_path: Path) -> None:
    image = format_fat32(tmp_path / "card.img", start_sector=START)
    rng = random.Random(3)
    files = {f"sparsyedge/{number}/{LONG}": rng.randbytes(rng.randrange(5000)) for number in range(20)}
    with boot_volume(image, writable=True) as volume:
        for _ in range(2):
            for name, content in files.items():
                volume.write(name, content)
    partition = tmp_path / "partition.img"
    with image.open("rb") as file:
        file.seek(START * SECTOR)
        partition.write_bytes(file.read())
    done = subprocess.run(["fsck.vfat", "-n", str(partition)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["mcopy", "-s", "-n", "-i", str(partition), "::sparsyedge", str(out)], check=True)
    assert all((out / name).read_bytes() == content for name, content in files.items())
