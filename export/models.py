"""The table of models we export and how their weights begin; to add one, add a file to zoo/ and an entry to MODELS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import truncnorm
from torch import nn

from sparsyedge.edge.data import Form, Task
from sparsyedge.edge.data.dataset import axes_of
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import IMAGE_AXES
from sparsyedge.export.zoo.ds_cnn import DsCnn
from sparsyedge.export.zoo.mobilenet_v2 import MobileNetV2
from sparsyedge.export.zoo.resnet18 import CalmResNet18, CifarResNet18, StandardResNet18

__all__ = ["MODELS", "ModelSpec", "build_model", "model_for", "prunable_names"]

# Cutting a normal distribution at two standard deviations leaves 0.8796 of its standard deviation.
TRUNCATED_STD = 0.87962566103423978


@dataclass(frozen=True)
class ModelSpec:
    """A model's name and size, and the form of its data."""

    model: str
    width: int
    classes: int
    """The number of classes; in a regression, of outputs."""
    input_shape: tuple[int, ...]
    """Of one sample: channels, height, width of an image; edge/data/dataset.py names the axes of others."""
    class_names: tuple[str, ...] = ()
    """In the order of their numbers, or of the outputs; empty if they have no names."""
    sample_type: SampleType = "uint8"
    task: Task = "classes"

    @property
    def outputs(self) -> int:
        """How many numbers the model gives per sample: one for each class, or for each target."""
        return self.classes

    @classmethod
    def for_data(cls, model: str, width: int, form: Form) -> ModelSpec:
        """The spec of a model for data of this form."""
        return cls(model, width, form.classes, form.shape, form.names, form.sample_type, form.task)


MODELS: Mapping[str, Callable[[ModelSpec], nn.Module]] = {
    "resnet18": CifarResNet18,
    "resnet18-7x7": StandardResNet18,
    "mobilenet_v2": MobileNetV2,
    "ds_cnn": DsCnn,
    "resnet18-calm": CalmResNet18,
}


def build_model(spec: ModelSpec, *, beta: float, seed: int) -> nn.Module:
    """The model in training mode; its weights w make theta = sign(w)|w|^beta the usual initialisation."""
    if spec.model not in MODELS:
        raise ConfigError(f"no model {spec.model!r}; there are: {', '.join(MODELS)}")
    if len(spec.input_shape) != IMAGE_AXES:
        raise ConfigError(
            f"model {spec.model} takes images (channels, height, width), the data has samples of shape "
            f"{spec.input_shape} {axes_of(spec.input_shape)}; choose another --model"
        )
    model = MODELS[spec.model](spec).train()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in prunable_names(model):
                theta = _draw_theta(tuple(parameter.shape), rng)
                parameter.copy_(torch.from_numpy(np.sign(theta) * np.abs(theta) ** (1 / beta)))
            elif name.endswith("bias"):
                parameter.zero_()
    return model


def prunable_names(model: nn.Module) -> frozenset[str]:
    """The weights of every convolution and linear layer, including the first and the last."""
    return frozenset(
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
    )


def _draw_theta(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Variance scaling by fan-in: a normal truncated at two standard deviations, with variance 1 / fan-in."""
    fan_in = int(np.prod(shape[1:]))
    scale = (1 / fan_in) ** 0.5 / TRUNCATED_STD
    draw: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = truncnorm.rvs(
        -2, 2, scale=scale, size=shape, random_state=rng
    )
    return draw


def model_for(dataset: str) -> str:
    """The default model for a data set; sound needs the larger stem."""
    return "resnet18-7x7" if dataset.startswith("speech_commands") else "resnet18"
