"""The training method in plain torch, written apart from the graphs: what a correct step is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparsyedge.edge.methods import Method
from sparsyedge.edge.tensors import State
from sparsyedge.export.models import prunable_names

__all__ = ["ReferenceStep", "prune_activation", "reference_step", "reparametrise"]


@dataclass
class ReferenceStep:
    """One SGD step in torch, and the discrete choices that it made on the way."""

    loss: float
    gradients: State
    """By parameter name, weight decay included."""
    relu_signs: list[Tensor] = field(default_factory=list)
    kept_activations: dict[str, Tensor] = field(default_factory=dict)
    """Which inputs of a layer fed the gradient of its weight, by the weight's name."""


def reference_step(model: nn.Module, method: Method, x: Tensor, y: Tensor, *, learning_rate: float) -> ReferenceStep:
    """Take one step on the model in place, BatchNorm's statistics included."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, weight_decay=method.weight_decay)
    optimizer.zero_grad()
    prunable = prunable_names(model)
    effective = {name: reparametrise(w, method.beta) if name in prunable else w for name, w in model.named_parameters()}
    recorder = _MethodMode({id(effective[name]): name for name in prunable} if method.prune_activations else {})
    with recorder:
        logits = torch.func.functional_call(model, effective, (x,))
    loss = functional.cross_entropy(logits, y)
    loss.backward()  # type: ignore[no-untyped-call]
    if method.masks_gradients:
        _mask_gradients(model, prunable)
    gradients = {
        name: (w.grad + method.weight_decay * w).detach().numpy().copy()
        for name, w in model.named_parameters()
        if w.grad is not None
    }
    optimizer.step()
    return ReferenceStep(float(loss.detach()), gradients, recorder.relu_signs, recorder.kept_activations)


def _mask_gradients(model: nn.Module, prunable: frozenset[str]) -> None:
    for name, w in model.named_parameters():
        if name in prunable and w.grad is not None:
            w.grad[w.detach() == 0] = 0


def reparametrise(w: Tensor, beta: float) -> Tensor:
    """theta = sign(w)|w|^beta; with beta = 1 the weight itself, whose zeros have gradients."""
    return w if beta == 1 else torch.sign(w) * torch.abs(w) ** beta


def prune_activation(x: Tensor, weight: Tensor) -> Tensor:
    """The copy of a layer's input that feeds its weight gradient: the largest |x|, as densely as the weights are."""
    kept_weights, weights = int(torch.count_nonzero(weight)), weight.numel()
    if kept_weights == weights:
        return x
    keep = max(1, -(-kept_weights * x.numel() // weights))
    magnitudes = x.abs().reshape(-1)
    threshold = torch.topk(magnitudes, keep).values[-1] if keep < x.numel() else torch.tensor(-math.inf)
    return torch.where(x.abs() >= threshold, x, torch.zeros_like(x))


class _MethodMode(TorchFunctionMode):
    """Gives the layers of the named weights (by tensor `id`) the method's backward; writes down signs and masks."""

    def __init__(self, weights: Mapping[int, str]) -> None:
        super().__init__()
        self._weights = weights
        self.relu_signs: list[Tensor] = []
        self.kept_activations: dict[str, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.relu:
            output = func(*args, **kwargs)
            self.relu_signs.append(output.detach() > 0)
            return output
        if func in (torch.conv2d, functional.linear) and id(args[1]) in self._weights:
            return self._layer(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _layer(self, func: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        """The layer's output on the whole input, with a weight gradient that sees the pruned input alone."""
        pruned = prune_activation(x.detach(), weight.detach())
        self.kept_activations[self._weights[id(weight)]] = pruned != 0
        for_weight = func(pruned, weight, bias, *rest)
        return func(x, weight.detach(), None if bias is None else bias.detach(), *rest) + (
            for_weight - for_weight.detach()
        )
