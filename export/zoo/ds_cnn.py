"""DS-CNN (Zhang et al. 2017) as in MLPerf Tiny's keyword spotting: a 10x4 convolution and four separable blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsyedge.export.model_spec import ModelSpec

__all__ = ["DsCnn"]

BLOCKS = 4
KERNEL, STRIDE, PADDING = (10, 4), 2, (5, 1)


class DsCnn(nn.Module):
    """For spectrograms, such as 1 x 49 x 10 (MLPerf Tiny) or 1 x 40 x 98; `width` channels everywhere.

    Differs from MLPerf Tiny: 5 rows of zeros on both sides of the first axis instead of 4 and 5; no dropout; no bias in
    the convolutions, because the BatchNorm behind them takes it away again.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.width
        self.stem = _Layer(nn.Conv2d(spec.input_shape[0], width, KERNEL, STRIDE, PADDING, bias=False))
        self.blocks = nn.Sequential(
            *(
                layer
                for _ in range(BLOCKS)
                for layer in (
                    _Layer(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)),
                    _Layer(nn.Conv2d(width, width, 1, bias=False)),
                )
            )
        )
        self.fc = nn.Linear(width, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        logits: Tensor = self.fc(features)
        return logits


class _Layer(nn.Module):
    """A convolution, BatchNorm and ReLU."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm2d(conv.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))
