"""The table of models we export and how their weights begin; to add one, add a file to zoo/ and an entry to MODELS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sparsyedge.edge.data.dataset import axes_of
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import IMAGE_AXES
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.reparametrise import weights_of
from sparsyedge.edge.tensors import State
from sparsyedge.export.model_spec import ModelChoices, ModelSpec
from sparsyedge.export.own_module import check_module, freeze, load_module, read_weights
from sparsyedge.export.zoo.ds_cnn import DsCnn
from sparsyedge.export.zoo.mlp import Mlp
from sparsyedge.export.zoo.mobilenet_v2 import MobileNetV2
from sparsyedge.export.zoo.resnet18 import CalmResNet18, CifarResNet18, StandardResNet18
from sparsyedge.export.zoo.sensor_cnn import SensorCnn
from sparsyedge.export.zoo.vit import VITS, timm_names

__all__ = [
    "MODELS",
    "build_model",
    "is_own",
    "layer_weights",
    "make_module",
    "model_for",
    "prunable_names",
    "state_of",
    "turn_into_weights",
]

log = logging.getLogger(__name__)

# Cutting a normal distribution at two standard deviations leaves 0.8796 of its standard deviation.
TRUNCATED_STD = 0.87962566103423978


MODELS: Mapping[str, Callable[[ModelSpec], nn.Module]] = {
    "resnet18": CifarResNet18,
    "resnet18-7x7": StandardResNet18,
    "mobilenet_v2": MobileNetV2,
    "ds_cnn": DsCnn,
    "resnet18-calm": CalmResNet18,
    **VITS,
    "sensor_cnn": SensorCnn,
    "mlp": Mlp,
}
_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_AXES: Mapping[str, tuple[int, ...]] = {"sensor_cnn": (2,), "mlp": (1, 2, 3, 4)}
"""How many axes a sample of a model has, if it is not an image."""


def is_own(model: str) -> bool:
    """Whether a name means a user's own module, not one of the zoo."""
    return ":" in model


def make_module(spec: ModelSpec, *, beta: float, seed: int, choices: ModelChoices) -> tuple[nn.Module, bool]:
    """The module to export, and whether its layers hold theta, the weights that they compute with.

    A model of the zoo holds w already. A user's own module, weights from a file, and a model of which only a part
    is prunable are theta: the exporter turns them into w once it knows which are prunable.
    """
    in_part = choices.train != "all" or choices.prunable is not None
    holds_theta = is_own(spec.model) or choices.init is not None or in_part
    if is_own(spec.model):
        torch.manual_seed(seed)
        model = load_module(spec, choices.arguments)
    else:
        model = build_model(spec, beta=1.0 if holds_theta else beta, seed=seed)
    if choices.init is not None:
        _start_from(model, choices.init, spec)
    freeze(model, choices.train, layer_weights(model))
    check_module(model, spec)
    return model, holds_theta


def build_model(spec: ModelSpec, *, beta: float, seed: int) -> nn.Module:
    """A model of the zoo in training mode; its weights w make theta = sign(w)|w|^beta the usual initialisation."""
    if spec.model not in MODELS:
        raise ConfigError(
            f"no model {spec.model!r}; there are: {', '.join(MODELS)}, and your own as FILE.py:CALLABLE or "
            f"package.module:CALLABLE"
        )
    if len(spec.input_shape) not in _AXES.get(spec.model, (IMAGE_AXES,)):
        wanted = "signals (channels, length)" if spec.model in _AXES else "images (channels, height, width)"
        raise ConfigError(
            f"model {spec.model} takes {wanted}, the data has samples of shape "
            f"{spec.input_shape} {axes_of(spec.input_shape)}; choose another --model"
        )
    torch.manual_seed(seed)  # for parameters that the zoo draws itself
    model = MODELS[spec.model](spec).train()
    rng = np.random.default_rng(seed)
    prunable = prunable_names(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in prunable:
                theta = _draw_theta(tuple(parameter.shape), rng)
                parameter.copy_(torch.from_numpy(np.sign(theta) * np.abs(theta) ** (1 / beta)))
            elif name.endswith("bias"):
                parameter.zero_()
    return model


def _start_from(model: nn.Module, path: Path, spec: ModelSpec) -> None:
    """Load a file of weights that must fit tensor by tensor.

    The last layer of the zoo's models may be missing or for other classes. Then it begins at random, as in fine-tuning.
    """
    found = timm_names(read_weights(path))
    wanted = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    if not is_own(spec.model):
        wanted = _without_other_head(wanted, found, layer_weights(model)[-1], path)
    missing = [name for name in wanted if name not in found]
    other = [name for name in wanted if name in found and found[name].shape != wanted[name].shape]
    if missing or other:
        name = (other or missing)[0]
        there = f"has shape {tuple(found[name].shape)} there" if other else "is not there"
        raise ConfigError(
            f"--init {path} does not fit {spec.model}: {name} of shape {tuple(wanted[name].shape)} {there}; "
            f"{len(missing)} of {len(wanted)} tensors are missing, {len(other)} have another shape"
        )
    model.load_state_dict({name: found[name].float() for name in wanted}, strict=False)


def _without_other_head(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], head: str, path: Path
) -> dict[str, Tensor]:
    """The tensors to load: those of the last layer only if the file has them for as many classes."""
    theirs, ours = found.get(head), wanted[head]
    if theirs is not None and (theirs.shape == ours.shape or theirs.shape[1:] != ours.shape[1:]):
        return dict(wanted)
    layer = head.removesuffix("weight")
    has = "no such layer" if theirs is None else f"one for {len(theirs)} classes"
    log.warning("%s begins at random, for %d classes: %s has %s", layer.rstrip("."), len(ours), path, has)
    return {name: tensor for name, tensor in wanted.items() if not name.startswith(layer)}


def state_of(model: nn.Module) -> State:
    """The model's tensors as numpy copies; BatchNorm's batch counters are not part of a state."""
    return {
        name: tensor.detach().numpy().copy()
        for name, tensor in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def turn_into_weights(model: nn.Module, method: Method, prunable: Iterable[str]) -> None:
    """Replace theta by the w that the method makes it from, in place."""
    with torch.no_grad():
        for name in prunable:
            parameter = model.get_parameter(name)
            parameter.copy_(torch.from_numpy(weights_of(method, parameter.numpy())))


def layer_weights(model: nn.Module) -> list[str]:
    """The weights of convolutions and linear layers in the order of the parameters."""
    prunable = prunable_names(model)
    return [name for name, _ in model.named_parameters() if name in prunable]


def prunable_names(model: nn.Module) -> frozenset[str]:
    """The weights of every convolution and linear layer, including the first and the last."""
    return frozenset(f"{name}.weight" for name, module in model.named_modules() if isinstance(module, _LAYERS))


def _draw_theta(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Variance scaling by fan-in: a normal truncated at two standard deviations, with variance 1 / fan-in."""
    # Imported here because it takes half a second.
    from scipy.stats import truncnorm

    fan_in = int(np.prod(shape[1:]))
    scale = (1 / fan_in) ** 0.5 / TRUNCATED_STD
    draw: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = truncnorm.rvs(
        -2, 2, scale=scale, size=shape, random_state=rng
    )
    return draw


def model_for(dataset: str) -> str:
    """The default model for a data set; sound needs the larger stem."""
    return "resnet18-7x7" if dataset.startswith("speech_commands") else "resnet18"
