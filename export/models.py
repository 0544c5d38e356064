"""The models we export, as plain torch modules; to add one, add an entry to MODELS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import truncnorm
from torch import Tensor, nn

from sparsyedge.edge.data import Form, Task
from sparsyedge.edge.data.dataset import axes_of
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import IMAGE_AXES

__all__ = ["MODELS", "ModelSpec", "build_model", "model_for", "prunable_names"]

# Cutting a normal distribution at two standard deviations leaves 0.8796 of its standard deviation.
TRUNCATED_STD = 0.87962566103423978
CALM_EPSILON = 0.1


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


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut, as in ResNet-18."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet18(nn.Module):
    """ResNet-18; the subclass brings the stem, `conv1` and `reduce`."""

    def __init__(self, spec: ModelSpec, stem: nn.Conv2d, reduce: nn.Module) -> None:
        super().__init__()
        width = spec.width
        self.conv1 = stem
        self.bn1 = nn.BatchNorm2d(width)
        self.reduce = reduce
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2), BasicBlock(8 * width, 8 * width, 1))
        self.fc = nn.Linear(8 * width, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduce(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features: Tensor = x.mean((2, 3))
        logits: Tensor = self.fc(features)
        return logits


class CifarResNet18(ResNet18):
    """For small images: a 3x3 stem with stride 1, no max-pooling, and the usual strides elsewhere."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, nn.Conv2d(spec.input_shape[0], spec.width, 3, 1, 1, bias=False), nn.Identity())


class StandardResNet18(ResNet18):
    """For large images and waveforms: a 7x7 stem with stride 2, then max-pooling."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(
            spec, nn.Conv2d(spec.input_shape[0], spec.width, 7, 2, 3, bias=False), nn.MaxPool2d(3, stride=2, padding=1)
        )


class CalmResNet18(CifarResNet18):
    """BatchNorm with a larger epsilon: it magnifies gradients behind an empty filter by 3 instead of 316.

    Methods whose zeros have gradients need this at high sparsities (docs/explanation/reproduction.md).
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = CALM_EPSILON


MODELS: Mapping[str, Callable[[ModelSpec], nn.Module]] = {
    "resnet18": CifarResNet18,
    "resnet18-7x7": StandardResNet18,
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
