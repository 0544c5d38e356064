"""A 1-d CNN for signals of a few sensors, such as an accelerometer's 3 x 128."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsyedge.export.model_spec import ModelSpec

__all__ = ["SensorCnn"]

KERNEL = 5


class Stage(nn.Module):
    """A convolution that halves the length, a 1x1 convolution behind it, each with BatchNorm and ReLU."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels, KERNEL, stride=2, padding=KERNEL // 2, bias=False)
        self.bn1 = nn.BatchNorm1d(channels)
        self.mix = nn.Conv1d(channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv(x)))
        return torch.relu(self.bn2(self.mix(x)))


class SensorCnn(nn.Module):
    """Three stages of `spec.width`, then twice and four times as many channels; the mean over time; a linear layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.width
        self.stages = nn.Sequential(
            Stage(spec.input_shape[0], width), Stage(width, 2 * width), Stage(2 * width, 4 * width)
        )
        self.head = nn.Linear(4 * width, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.stages(x).mean(2))
        return outputs
