from __future__ import annotations

from pathlib import Path

import pytest

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.disk import Disk, look_up, write_card


def machine(root: Path, *, removable: int = 1, mounted: str = "", name: str = "sdb") -> tuple[Path, Path]:
    """A /sys with one disk of one partition, and a list of mounts."""
    folder = root / "sys" / "block" / name
    (folder / f"{name}1").mkdir(parents=True)
    (folder / "device").mkdir()
    for file, content in {"removable": removable, "size": 62_333_952}.items():
        (folder / file).write_text(f"{content}\n")
    (folder / "device" / "vendor").write_text("Generic \n")
    (folder / "device" / "model").write_text("STORAGE DEVICE  \n")
    mounts = root / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\n{mounted}")
    return root / "sys", mounts


def test_a_removable_disk_is_shown_with_model_and_size(tmp_path: Path) -> None:
    root, mounts = machine(tmp_path)
    assert str(look_up(Path("/dev/sdb"), root=root, mounts=mounts)) == "/dev/sdb (Generic STORAGE DEVICE, 31.9 GB)"


def test_a_built_in_card_reader_counts_as_removable(tmp_path: Path) -> None:
    root, mounts = machine(tmp_path, removable=0, name="mmcblk0")
    assert look_up(Path("/dev/mmcblk0"), root=root, mounts=mounts).size == 62_333_952 * 512


@pytest.mark.parametrize(
    ("removable", "mounted", "path", "sentence"),
    [
        (0, "", "/dev/sdb", "is not removable, so it is not a card"),
        (1, "/dev/sdb1 /media/me/bootfs vfat rw 0 0\n", "/dev/sdb", "/dev/sdb1 is mounted at /media/me/bootfs"),
        (1, "", "/dev/sdb1", "is a partition; name the whole disk"),
        (1, "", "/dev/sdz", "is no disk of this machine"),
        (1, "", "/home/me/card.img", "allowed is a disk in /dev"),
        (1, "", "/dev/../sda", "allowed is a disk in /dev"),
    ],
)
def test_everything_but_an_unused_card_is_refused(
    tmp_path: Path, removable: int, mounted: str, path: str, sentence: str
) -> None:
    root, mounts = machine(tmp_path, removable=removable, mounted=mounted)
    with pytest.raises(FlashError, match=sentence):
        look_up(Path(path), root=root, mounts=mounts)


def a_card(folder: Path, size: int = 100_000) -> tuple[Path, Disk]:
    image, target = folder / "card.img", folder / "sdb"
    image.write_bytes(bytes(range(250)) * 40)
    target.write_bytes(bytes(size))
    return image, Disk(target, "fake", size)


def test_a_card_is_written_after_its_name_was_typed(tmp_path: Path) -> None:
    image, disk = a_card(tmp_path)
    asked: list[str] = []

    def confirm(question: str) -> str:
        asked.append(question)
        return "sdb\n"

    write_card(image, disk, confirm=confirm)
    assert disk.path.read_bytes()[:10_000] == image.read_bytes()
    assert asked == [f"everything on {disk} will be lost; type sdb to go on: "]


@pytest.mark.parametrize("answer", ["", "y", "yes", "sda"])
def test_any_other_answer_writes_nothing(tmp_path: Path, answer: str) -> None:
    image, disk = a_card(tmp_path)
    with pytest.raises(FlashError, match="nothing was written"):
        write_card(image, disk, confirm=lambda question: answer)
    assert disk.path.read_bytes() == bytes(100_000)


def test_a_card_that_is_too_small_is_refused_before_the_question(tmp_path: Path) -> None:
    image, disk = a_card(tmp_path, size=5000)
    with pytest.raises(FlashError, match="take a larger card"):
        write_card(image, disk, confirm=lambda question: pytest.fail("asked"))
