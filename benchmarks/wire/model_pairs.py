"""Pairs of models for measuring the wire: a base that the receiver holds, and the next model, trained from it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsyedge.coordinator.model.model_files import ModelFiles
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire.frame import decode_frame, read_header

__all__ = ["Pair", "pair_from_file", "pair_from_run", "synthetic_pair"]

# ResNet-18 for CIFAR-10: blocks per layer, and the widths of its four layers.
WIDTHS = (64, 128, 256, 512)
CLASSES = 10
DENSITIES = {"conv1": 0.7, "layer1": 0.4, "layer2": 0.2, "layer3": 0.08, "layer4": 0.025, "fc": 0.3}
"""How dense trained masks are, by part of the network, before they are scaled to NONZERO_RATIO."""
NONZERO_RATIO = 19.29
"""Parameters per non-zero parameter: the SparsyFed paper's figure for a sparsity of .95."""
BASE_EXCESS = 1.036
"""Non-zeros of the base per non-zero of the next model, as seen between two rounds of a trained model."""
MOVE = 0.021
"""Root mean square of a round's move relative to that of the weights, as seen there too."""


@dataclass(frozen=True)
class Pair:
    """Two consecutive models; tensors that the base lacks are sent whole."""

    source: str
    base: State
    state: State
    prunable: tuple[str, ...]


def pair_from_file(path: Path) -> Pair:
    """The arrays `prev/<name>` and `cur/<name>` of an .npz file; tensors with two or more dimensions are prunable."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            models = {
                part: {
                    name.removeprefix(part): np.ascontiguousarray(arrays[name], dtype=np.float32)
                    for name in arrays.files
                    if name.startswith(part)
                }
                for part in ("prev/", "cur/")
            }
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read a pair of models from {path}: {error}") from error
    if not models["cur/"] or not models["prev/"]:
        raise DataError(f"{path} has not both arrays `prev/<name>` and `cur/<name>`, which a pair of models needs")
    state = models["cur/"]
    return Pair(str(path), models["prev/"], state, tuple(name for name in state if state[name].ndim > 1))


def pair_from_run(run_dir: Path) -> Pair:
    """The last two global models of a run."""
    versions = ModelFiles(run_dir)
    rounds = versions.rounds()[-2:]
    if len(rounds) < 2:
        raise DataError(f"{run_dir} has not two models to compare; let the run close a round first")
    before, now = (versions.load(number).frame for number in rounds)
    header = read_header(now)
    base, state = (decode_frame(frame, header.shapes).state for frame in (before, now))
    return Pair(str(run_dir), base, state, tuple(weight.name for weight in header.weights))


def synthetic_pair(seed: int) -> Pair:
    """Gaussian weights as dense as trained masks, moved at random, with the smallest of each tensor dropped."""
    rng = np.random.default_rng(seed)
    shapes = resnet18_shapes()
    scale = _density_scale(shapes)
    base: State = {}
    state: State = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            density = scale * DENSITIES[name.partition(".")[0]]
            base[name], state[name] = _weight_pair(rng, shape, density)
        else:
            base[name], state[name] = _vector_pair(rng, name, shape)
    return Pair("synthetic", base, state, tuple(name for name, shape in shapes.items() if len(shape) > 1))


def resnet18_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a CIFAR-10 ResNet-18, by name."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (WIDTHS[0], 3, 3, 3)}
    _add_norm(shapes, "bn1", WIDTHS[0])
    inputs = WIDTHS[0]
    for layer, width in enumerate(WIDTHS, 1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            for index, channels in ((1, inputs), (2, width)):
                shapes[f"{name}.conv{index}.weight"] = (width, channels, 3, 3)
                _add_norm(shapes, f"{name}.bn{index}", width)
            if inputs != width:
                shapes[f"{name}.downsample.0.weight"] = (width, inputs, 1, 1)
                _add_norm(shapes, f"{name}.downsample.1", width)
            inputs = width
    shapes["fc.weight"] = (CLASSES, inputs)
    shapes["fc.bias"] = (CLASSES,)
    return shapes


def _add_norm(shapes: dict[str, tuple[int, ...]], name: str, width: int) -> None:
    for part in ("weight", "bias", "running_mean", "running_var"):
        shapes[f"{name}.{part}"] = (width,)


def _density_scale(shapes: dict[str, tuple[int, ...]]) -> float:
    """The factor on all densities that makes parameters per non-zero parameter equal NONZERO_RATIO."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    dense = sum(size for name, size in sizes.items() if len(shapes[name]) == 1 and "running" not in name)
    weights = {name: size for name, size in sizes.items() if len(shapes[name]) > 1}
    unscaled = sum(DENSITIES[name.partition(".")[0]] * size for name, size in weights.items())
    return ((dense + sum(weights.values())) / NONZERO_RATIO - dense) / unscaled


def _weight_pair(rng: np.random.Generator, shape: tuple[int, ...], density: float) -> tuple[FloatArray, FloatArray]:
    size = int(np.prod(shape))
    spread = np.float32(1 / np.sqrt(np.prod(shape[1:])))
    base = np.zeros(size, dtype=np.float32)
    held = rng.choice(size, min(size, round(density * BASE_EXCESS * size)), replace=False)
    base[held] = spread * rng.standard_normal(held.size, dtype=np.float32)
    moved = base[held] + np.float32(MOVE) * spread * rng.standard_normal(held.size, dtype=np.float32)
    kept = np.argsort(np.abs(moved))[held.size - round(density * size) :]
    state = np.zeros(size, dtype=np.float32)
    state[held[kept]] = moved[kept]
    return base.reshape(shape), state.reshape(shape)


def _vector_pair(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    centre = np.float32(1 if name.endswith(("weight", "running_var")) else 0)
    base = centre + np.float32(0.1) * rng.standard_normal(shape, dtype=np.float32)
    return base, base + np.float32(0.1 * MOVE) * rng.standard_normal(shape, dtype=np.float32)
