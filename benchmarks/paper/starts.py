"""What a run needs before it can begin, beyond the data sets that `load` knows: halves of CIFAR-10, birds, weights."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsyedge.benchmarks.paper.settings import Setting
from sparsyedge.edge.data import Dataset, Samples, load
from sparsyedge.edge.data.loaders import find_by_name
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.storage import write_atomically

__all__ = ["dataset_for", "init_for", "prepare"]

HALVES = {"cifar10_first": range(5), "cifar10_second": range(5, 10)}
"""Data sets that are classes of CIFAR-10."""
BIRDS = "cub200"
BIRDS_URL = "https://data.caltech.edu/records/65de6-vp158"


def dataset_for(name: str, directory: Path) -> str:
    """What a run's config calls a data set; `directory` has those that `prepare` makes."""
    return str(directory / "data" / f"{name}.npz") if name in HALVES else name


def init_for(setting: Setting, directory: Path, *, data_dir: str | None) -> Path | None:
    """The weights that a run begins with: pretrained in `directory`, or from a folder of data sets; None for none."""
    if setting.pretraining is not None:
        facts = msgspec.json.encode((setting.pretraining, setting.model, setting.width))
        return directory / "starts" / f"{hashlib.sha256(facts).hexdigest()[:16]}.safetensors"
    if setting.init is not None:
        return find_by_name(setting.init, _path(data_dir)) or Path(setting.init)
    return None


def prepare(setting: Setting, directory: Path, *, data_dir: str | None) -> dict[str, Any] | None:
    """Make or find what the run needs; returns facts about its pretraining, if it has one.

    Blocks for minutes where a model is pretrained; later calls read what this one left.
    """
    if setting.dataset in HALVES:
        _half(setting.dataset, directory, data_dir=data_dir)
    if setting.dataset == BIRDS and find_by_name(BIRDS, _path(data_dir)) is None:
        raise DataError(
            f"data set {BIRDS} is not there: get CUB_200_2011.tgz (1.2 GB) from {BIRDS_URL}, unpack it, and run "
            f"`python -m sparsyedge.benchmarks.paper.birds CUB_200_2011 DIR/{BIRDS}`, which writes train/CLASS and "
            "test/CLASS with images of 224 x 224 pixels; then name DIR with --data-dir or $SPARSYEDGE_DATA"
        )
    if setting.init is not None and find_by_name(setting.init, _path(data_dir)) is None:
        raise DataError(
            f"there is no {setting.init}, the weights to begin with: save those of the paper's ViT-Base (Hugging Face, "
            "Ahmed9275/Vit-Cifar100) or of timm's vit_base_patch16_224 under this name, and name their folder with "
            "--data-dir or $SPARSYEDGE_DATA"
        )
    return None if setting.pretraining is None else _pretrain(setting, directory, data_dir=data_dir)


def _pretrain(setting: Setting, directory: Path, *, data_dir: str | None) -> dict[str, Any]:
    path = init_for(setting, directory, data_dir=data_dir)
    assert setting.pretraining is not None
    assert setting.model is not None
    assert path is not None
    facts = path.with_suffix(".json")
    if not (path.is_file() and facts.is_file()):
        # Imported here: reading results needs no torch.
        from sparsyedge.benchmarks.paper.pretraining import pretrain

        dataset = _half(setting.pretraining.dataset, directory, data_dir=data_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = pretrain(setting.pretraining, dataset, path, model=setting.model, width=setting.width)
        write_atomically(facts, msgspec.json.format(msgspec.json.encode(found), indent=1))
    return msgspec.json.decode(facts.read_bytes())  # type: ignore[no-any-return]


def _half(name: str, directory: Path, *, data_dir: str | None) -> Dataset:
    """A half of CIFAR-10, which later calls and runs read from a file."""
    path = Path(dataset_for(name, directory))
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _as_npz(load("cifar10", _path(data_dir)), HALVES[name]))
    return load(str(path))


def _as_npz(dataset: Dataset, classes: range) -> bytes:
    """The samples of some classes, numbered from 0, as a user's own file would have them."""
    parts: dict[str, NDArray[Any]] = {}
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        kept = _only(samples, classes)
        parts |= {f"x_{part}": kept.x.transpose(0, 2, 3, 1), f"y_{part}": kept.y}
    file = io.BytesIO()
    parts["names"] = np.array(dataset.names)[list(classes)]
    np.savez(file, **parts)  # type: ignore[arg-type]  # the stub takes a keyword for an option
    return file.getvalue()


def _only(samples: Samples, classes: range) -> Samples:
    kept = np.isin(samples.y, classes)
    return Samples(samples.x[kept], samples.y[kept] - classes.start)


def _path(data_dir: str | None) -> Path | None:
    return None if data_dir is None else Path(data_dir)
