"""CIFAR-10 and CIFAR-100 in their official binary version: records of label bytes and 3072 pixel bytes, no pickle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.data.download import Archive
from sparsyedge.edge.data.form import Form
from sparsyedge.edge.errors import DataError

__all__ = ["CIFAR10", "CIFAR100", "CifarVersion", "has_cifar", "read_cifar"]

_IMAGE_SHAPE = (3, 32, 32)  # planes of red, green and blue, row by row: the order for training
_IMAGE_BYTES = 3 * 32 * 32

_CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class CifarVersion:
    """Where one CIFAR comes from and how its records are laid out; training uses the last label byte."""

    name: str
    form: Form
    """Its classes in label order; the archive spells some names in more than one way."""
    label_bytes: int
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    archive: Archive


CIFAR10 = CifarVersion(
    name="cifar10",
    form=Form(_IMAGE_SHAPE, 10, tuple(_CIFAR10_NAMES.split())),
    label_bytes=1,
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test_files=("test_batch.bin",),
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        size_bytes=170_052_171,
        unpacked_bytes=185_000_000,
    ),
)

CIFAR100 = CifarVersion(
    name="cifar100",
    form=Form(_IMAGE_SHAPE, 100, tuple(_CIFAR100_NAMES.split())),
    label_bytes=2,  # coarse (20 superclasses), then fine
    train_files=("train.bin",),
    test_files=("test.bin",),
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        size_bytes=168_513_733,
        unpacked_bytes=185_000_000,
    ),
)


def has_cifar(folder: Path, version: CifarVersion) -> bool:
    """Whether `folder` looks like the unpacked archive; reading it reports any missing file."""
    return (folder / version.test_files[0]).is_file() and (folder / version.train_files[0]).is_file()


def read_cifar(folder: Path, version: CifarVersion) -> Dataset:
    """The data set in the unpacked archive `folder`; does not check values yet."""
    train = _read_records([folder / file for file in version.train_files], version)
    test = _read_records([folder / file for file in version.test_files], version)
    return Dataset(version.name, train, test, version.form.classes, version.form.names)


def _read_records(paths: list[Path], version: CifarVersion) -> Samples:
    """All records of `paths`, read file by file into one array: a small Pi has no room for 150 MB twice."""
    counts = [_record_count(path, version) for path in paths]
    x = np.empty((sum(counts), *_IMAGE_SHAPE), dtype=np.uint8)
    y = np.empty(sum(counts), dtype=np.int64)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        records = np.fromfile(path, dtype=np.uint8).reshape(count, version.label_bytes + _IMAGE_BYTES)
        y[start : start + count] = records[:, version.label_bytes - 1]
        x[start : start + count] = records[:, version.label_bytes :].reshape(count, *_IMAGE_SHAPE)
        start += count
    return Samples(x, y)


def _record_count(path: Path, version: CifarVersion) -> int:
    record_bytes = version.label_bytes + _IMAGE_BYTES
    try:
        count, rest = divmod(path.stat().st_size, record_bytes)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing; {version.name} needs {', '.join(version.train_files + version.test_files)} from "
            f"{version.archive.url}: unpack it again"
        ) from error
    if rest:
        raise DataError(
            f"{path} has {count * record_bytes + rest} bytes, which is no multiple of the record size {record_bytes}; "
            f"it is damaged: delete {path.parent} and unpack {version.archive.url} again"
        )
    return count
