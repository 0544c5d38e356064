"""Networks of the field suite that are not in the zoo: those of published tables, for images of 224 x 224 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.zoo.mobilenet_v2 import MobileNetV2

__all__ = ["ResNet50", "mobilenet_v2"]

EXPANSION = 4
# Channels, blocks, stride of the first block.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with BatchNorm, and a shortcut; the 3x3 one has the stride."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet50(nn.Module):
    """ResNet-50 with the stem of large images."""

    def __init__(self, classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.reduce = nn.MaxPool2d(3, stride=2, padding=1)
        layers: list[nn.Module] = []
        channels = 64
        for base, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(Bottleneck(channels, base, stride if block == 0 else 1))
                channels = EXPANSION * base
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.reduce(torch.relu(self.bn1(self.conv1(x)))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def mobilenet_v2(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """MobileNetV2 with the paper's stem of stride 2; the zoo's is for small images."""
    model = MobileNetV2(ModelSpec("mobilenet_v2", 64, classes, tuple(input_shape)))
    stem = model.get_submodule("features.0.0")
    assert isinstance(stem, nn.Conv2d)
    stem.stride = (2, 2)
    return model
