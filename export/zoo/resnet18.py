"""ResNet-18 with the stems of small images, of large images, and with a calmer BatchNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsyedge.export.model_spec import ModelSpec

__all__ = ["BasicBlock", "CalmResNet18", "CifarResNet18", "ResNet18", "StandardResNet18"]

CALM_EPSILON = 0.1


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
