"""MobileNetV2 (Sandler et al. 2018) for small images: torchvision's layers, with a stem of stride 1 and no dropout."""

from __future__ import annotations

from torch import Tensor, nn

from sparsyedge.export.model_spec import ModelSpec

__all__ = ["InvertedResidual", "MobileNetV2"]

FULL_WIDTH = 64
"""The width that stands for the multiplier 1.0."""
# Expansion, channels, blocks, stride of the first block.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM, LAST = 32, 1280


class MobileNetV2(nn.Module):
    """Inverted residuals with linear bottlenecks; 32x32 pixels end as 2x2."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        multiplier = spec.width / FULL_WIDTH
        channels = _scaled(STEM, multiplier)
        layers: list[nn.Module] = [_conv_norm(spec.input_shape[0], channels, 3, activated=True)]
        for expansion, base, blocks, stride in STAGES:
            for block in range(blocks):
                wanted = _scaled(base, multiplier)
                layers.append(InvertedResidual(channels, wanted, stride if block == 0 else 1, expansion))
                channels = wanted
        # As in the paper, a multiplier below 1 leaves the last layer its size.
        last = _scaled(LAST, max(1.0, multiplier))
        layers.append(_conv_norm(channels, last, 1, activated=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(last, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.features(x).mean((2, 3))
        logits: Tensor = self.classifier(features)
        return logits


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without activation; the input is added if its shape allows."""

    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = [_conv_norm(channels_in, hidden, 1, activated=True)] if expansion != 1 else []
        layers.append(_conv_norm(hidden, hidden, 3, stride=stride, groups=hidden, activated=True))
        layers.append(_conv_norm(hidden, channels, 1, activated=False))
        self.conv = nn.Sequential(*layers)
        self.adds_input = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.adds_input else y


def _conv_norm(
    channels_in: int, channels: int, kernel: int, *, stride: int = 1, groups: int = 1, activated: bool
) -> nn.Sequential:
    conv = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), *([nn.ReLU6()] if activated else []))


def _scaled(channels: int, multiplier: float) -> int:
    """The nearest multiple of 8, at least 8 and at least nine tenths of the exact number."""
    exact = channels * multiplier
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded
