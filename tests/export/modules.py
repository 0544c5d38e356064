"""Modules as a user might bring them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class EveryKind(nn.Module):
    """Convolutions of every kind, attention, norms, dropout, and activations with their own gradients."""

    def __init__(self, classes: int, hidden: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False)
        self.pointwise = nn.Conv2d(8, 12, 1)
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=3)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.fc = nn.Linear(12, hidden)
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = functional.silu(self.pointwise(functional.relu6(self.depthwise(x))))
        tokens = self.grouped(x).flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        tokens = self.dropout(functional.gelu(self.fc(tokens)))
        logits: Tensor = self.head(self.norm(tokens).mean(1))
        return logits


class Rarities(nn.Module):
    """Padding of even kernels, transposed convolutions, pools, norms without parameters, dropout inside attention."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(3, 8, 4, padding="same")
        self.group_norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 6, 2, 2)
        self.instance_norm = nn.InstanceNorm2d(6, affine=True)
        self.bare_norm = nn.BatchNorm2d(6, affine=False)
        self.prelu = nn.PReLU()
        self.encoder = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.mish(self.group_norm(self.even(x))), 2)
        x = functional.avg_pool2d(self.instance_norm(self.up(x)), 3, stride=2, padding=1)
        x = functional.adaptive_avg_pool2d(self.prelu(self.bare_norm(x)), 2)
        tokens = self.encoder(x.flatten(2).transpose(1, 2))
        logits: Tensor = self.head(tokens.mean(1))
        return logits


class SmallResNet(nn.Module):
    """What the fused layout knows, under names of its own."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.body_norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.body_norm(self.body(x)) + x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class SignalNet(nn.Module):
    """A short 1-d network with biases instead of norms."""

    def __init__(self, input_shape: tuple[int, int], outputs: int, hidden: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv1d(input_shape[0], hidden, 5, stride=4)
        self.mix = nn.Conv1d(hidden, hidden, 1)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.mix(torch.relu(self.conv(x)))).mean(2))
        return logits


class GruClassifier(nn.Module):
    """A recurrent network over means of a signal's pieces; torch's exporter writes every time step out."""

    def __init__(self, input_shape: tuple[int, int], classes: int, hidden: int = 8, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self.gru = nn.GRU(input_shape[0] * input_shape[1] // steps, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        pieces = x.reshape(x.shape[0], x.shape[1], self.steps, -1).transpose(1, 2).flatten(2)
        states, _ = self.gru(pieces)
        logits: Tensor = self.head(states[:, -1])
        return logits


class Branching(nn.Module):
    """Looks at its data to decide what to compute."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        logits: Tensor = self.head(x if bool(x.sum() > 0) else -x)
        return logits


class BranchingPart(nn.Module):
    """The same, deeper inside."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Flatten(), Branching(classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.stages(x)
        return logits


class Bessel(nn.Module):
    """An activation that ONNX does not have."""

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = torch.special.i1e(x)
        return scaled


class WithoutForm(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), Bessel())
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(x))
        return logits


class NormedVectors(nn.Module):
    """BatchNorm over features, which has one position per sample."""

    def __init__(self, classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.fc = nn.Linear(input_shape[0], 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.norm(self.fc(x))))
        return logits


class TwoOutputs(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(x.flatten(1))
        return logits, logits


class Unused(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(192, classes)
        self.spare = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits


class NothingToPrune(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.scale.numel()] * self.scale


def in_half_precision(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes).half())


def not_a_module(classes: int) -> int:
    return classes


def a_failing_one(classes: int) -> nn.Module:
    raise ValueError("no such file: weights.bin")


class Centred(nn.Module):
    """Has a statistic of its own, which no BatchNorm keeps, and a constant."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(192, classes)
        self.register_buffer("seen", torch.zeros(192))
        self.register_buffer("scale", torch.full((192,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        seen = self.get_buffer("seen")
        if self.training:
            seen.mul_(0.9).add_(0.1 * x.mean(0))
        logits: Tensor = self.head((x - seen) * self.get_buffer("scale"))
        return logits
