"""CUB-200-2011 as a folder of images of one size: `python -m sparsyedge.benchmarks.paper.birds CUB_200_2011 OUT`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sparsyedge.edge.errors import DataError
from sparsyedge.edge.installation import install_command

__all__ = ["lay_out"]

SIDE = 224


def lay_out(unpacked: Path, out: Path, *, side: int = SIDE) -> int:
    """Write OUT/train/CLASS and OUT/test/CLASS by the data set's own split; returns the number of images.

    `unpacked` is the archive's folder CUB_200_2011. The shorter side of an image is scaled to `side`, and the middle is
    cut out.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(f"resizing images needs Pillow; run `{install_command('images')}`") from error
    count = 0
    for name, part in _split(unpacked):
        source, target = unpacked / "images" / name, out / part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with Image.open(source) as image:
                ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BICUBIC).save(target, quality=95)
        except OSError as error:
            raise DataError(f"{source} cannot be resized into {target} ({error}); unpack the archive again") from error
        count += 1
    return count


def _split(unpacked: Path) -> Iterator[tuple[str, str]]:
    """Names of images, as CLASS/FILE.jpg, and their parts."""
    try:
        names = dict(_pairs(unpacked / "images.txt"))
        parts = dict(_pairs(unpacked / "train_test_split.txt"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{unpacked} is not the folder CUB_200_2011 of the archive ({error}); it must have images.txt, "
            "train_test_split.txt and images/"
        ) from error
    for number, name in names.items():
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise DataError(f"{unpacked / 'images.txt'} names {name!r}, which is outside images/; unpack it again")
        yield name, "train" if parts.get(number) == "1" else "test"


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        number, value = line.split()
        yield number, value


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m sparsyedge.benchmarks.paper.birds CUB_200_2011 OUT")
    try:
        print(f"{lay_out(Path(sys.argv[1]), Path(sys.argv[2])):,} images in {sys.argv[2]}")
    except DataError as error:
        sys.exit(str(error))
