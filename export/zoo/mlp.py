"""A perceptron with two hidden layers, for vectors of features and anything that can be flattened into one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparsyedge.export.model_spec import ModelSpec

__all__ = ["Mlp"]


class Mlp(nn.Module):
    """`spec.width` units in both hidden layers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(spec.input_shape), spec.width)
        self.fc2 = nn.Linear(spec.width, spec.width)
        self.head = nn.Linear(spec.width, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc1(x.flatten(1)))
        outputs: Tensor = self.head(torch.relu(self.fc2(x)))
        return outputs
