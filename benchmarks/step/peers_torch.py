"""The peers in torch, as fast as torch's own operators allow: a plain dense step, and SparsyFed.

A slow peer proves nothing. So ReLU and the residual sum work in place, SGD is the fused one, a weight is raised to a
power once per step and not once each way, and the exact threshold of the activations is bracketed by a sample: 3 ms
among a million values, where `torch.topk` and `torch.kthvalue` take 45 to 90 ms.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sparsyedge.benchmarks.step.workload import LEARNING_RATE, Workload
from sparsyedge.edge.tensors import State
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model
from sparsyedge.export.own_module import train_mode
from sparsyedge.export.zoo.resnet18 import BasicBlock, CifarResNet18

__all__ = ["DenseStep", "SparsyFedStep", "TorchStep", "dense_model", "sparsyfed_model"]


Pair = tuple[int, int]
# Dilation, not transposed, output padding: what aten wants to know of a convolution beside stride, padding and groups.
PLAIN = ((1, 1), False, (0, 0))
# A rank in a sample of 4,096 is off by 32 at most (one standard deviation): five of them miss practically never.
SAMPLE = 4096
MARGIN = 160


class TorchStep:
    """One SGD step of a model in torch, weight decay included."""

    def __init__(self, workload: Workload, model: nn.Module, *, layout: str = "nchw") -> None:
        torch.set_num_threads(workload.threads)
        memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        # mypy has no overload of `to` with a memory format alone; torch documents it.
        self._model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
        self._x = torch.from_numpy(workload.x).to(memory_format=memory_format)
        self._y = torch.from_numpy(workload.y)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        decay = workload.artifacts.manifest.method.weight_decay
        self._optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, weight_decay=decay, fused=True)

    def step(self) -> float:
        """Take one step of SGD and return the loss before it."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(forward(self._model, self._x), self._y)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()


class DenseStep(TorchStep):
    """Plain dense training that starts from the masked weights; zeros are ordinary numbers to it."""

    def __init__(self, workload: Workload, *, variant: str) -> None:
        super().__init__(workload, dense_model(workload), layout=variant)


class SparsyFedStep(TorchStep):
    """The method itself: Powerpropagation, and weight gradients from pruned activations."""

    def __init__(self, workload: Workload, *, variant: str) -> None:
        super().__init__(workload, sparsyfed_model(workload), layout=variant)


def dense_model(workload: Workload) -> nn.Module:
    """A plain model whose weights are the powers theta: it computes what the re-parametrised models compute."""
    beta = workload.artifacts.manifest.method.beta
    state = dict(workload.state)
    for name in workload.artifacts.manifest.prunable:
        state[name] = np.sign(state[name]) * np.abs(state[name]) ** np.float32(beta)
    return _model(workload, state)


def sparsyfed_model(workload: Workload) -> nn.Module:
    """The model with the method's layers in place of torch's."""
    model = _model(workload, workload.state)
    beta = workload.artifacts.manifest.method.beta
    for name in sorted(workload.artifacts.manifest.prunable):
        path = name.removesuffix(".weight")
        layer = model.get_submodule(path)
        parent, _, attribute = path.rpartition(".")
        replacement = SparsyConv(layer, beta) if isinstance(layer, nn.Conv2d) else SparsyLinear(layer, beta)
        setattr(model.get_submodule(parent), attribute, replacement)
    return model


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """The logits; like the model's own forward, but in place wherever the backward pass allows it."""
    logits: Tensor
    if not isinstance(model, CifarResNet18):
        logits = model(x)
        return logits
    x = model.bn1(model.conv1(x)).relu_()
    for block in itertools.chain(model.layer1, model.layer2, model.layer3, model.layer4):
        x = _block(cast("BasicBlock", block), x)
    logits = model.fc(x.mean((2, 3)))
    return logits


def _block(block: BasicBlock, x: Tensor) -> Tensor:
    shortcut = x if block.downsample is None else block.downsample(x)
    y = block.bn1(block.conv1(x)).relu_()
    output: Tensor = block.bn2(block.conv2(y)).add_(shortcut)
    return output.relu_()


def _model(workload: Workload, state: State) -> nn.Module:
    manifest = workload.artifacts.manifest
    spec = ModelSpec(manifest.model, manifest.width, manifest.classes, manifest.input_shape)
    model = build_model(spec, beta=manifest.method.beta, seed=manifest.seed)
    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.ReLU6):
            module.inplace = True
    # The only tensors that a state lacks are BatchNorm's batch counters.
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in state.items()}, strict=False)
    learned = dict(model.named_parameters())
    for parameter in manifest.parameters:
        if parameter.name in learned:
            learned[parameter.name].requires_grad_(parameter.trainable)
    return train_mode(model)


# ---- SparsyFed's layers ----------------------------------------------------------------------------------------------


class SparsyConv(nn.Module):
    """A convolution with theta = sign(w)|w|^beta, whose weight gradient sees the pruned input."""

    def __init__(self, layer: nn.Conv2d, beta: float) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._geometry = (layer.stride, layer.padding, layer.groups)
        self._beta = beta

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Conv.apply(x, self.weight, self._beta, *self._geometry)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias.reshape(-1, 1, 1)


class SparsyLinear(nn.Module):
    """The same for a linear layer."""

    def __init__(self, layer: nn.Module, beta: float) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._beta = beta

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Linear.apply(x, self.weight, self.bias, self._beta)  # type: ignore[no-untyped-call]
        return y


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, beta: float, stride: Pair, padding: Pair, groups: int) -> Tensor:
        slope = w.abs().pow_(beta - 1)
        theta = w * slope
        ctx.save_for_backward(prune(x, w), theta, slope)
        ctx.beta, ctx.geometry = beta, (stride, padding, *PLAIN, groups)
        return torch.conv2d(x, theta, None, stride, padding, groups=groups)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        pruned, theta, slope = ctx.saved_tensors
        # The gradient of the input does not depend on the input: one call serves both gradients.
        dx, dtheta, _ = torch.ops.aten.convolution_backward(
            dy, pruned, theta, None, *ctx.geometry, (ctx.needs_input_grad[0], True, False)
        )
        return dx, dtheta.mul_(slope).mul_(ctx.beta), None, None, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor, beta: float) -> Tensor:
        slope = w.abs().pow_(beta - 1)
        theta = w * slope
        ctx.save_for_backward(prune(x, w), theta, slope)
        ctx.beta = beta
        return functional.linear(x, theta, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        pruned, theta, slope = ctx.saved_tensors
        dtheta = dy.t() @ pruned
        return dy @ theta, dtheta.mul_(slope).mul_(ctx.beta), dy.sum(0), None


def prune(x: Tensor, w: Tensor) -> Tensor:
    """The largest |x| of the whole batch, as densely as the weights are; ties with the smallest of them stay."""
    kept_weights, weights = int(torch.count_nonzero(w)), w.numel()
    keep = max(1, -(-kept_weights * x.numel() // weights))
    if keep >= x.numel():
        return x
    # `abs` is dense in memory whatever the layout, and a threshold does not depend on the order.
    tau = kth_largest(x.abs().as_strided((x.numel(),), (1,)).numpy(), keep)
    # hardshrink drops |x| <= its limit, so the limit is the float just below the smallest value that stays.
    return x if tau == 0 else functional.hardshrink(x, float(np.nextafter(tau, np.float32(0))))


def kth_largest(values: NDArray[np.floating[Any]], k: int) -> np.floating[Any]:
    """The exact k-th largest of values that are not negative: only those near it, as a sample tells, are ranked."""
    at = values.size - k
    # ReLU's zeros are many and equal, which a partition suffers from.
    if values.size - np.count_nonzero(values) > at:
        return values.dtype.type(0)
    sample = np.sort(values[:: values.size // SAMPLE + 1])
    near = at * sample.size // values.size
    low = sample[near - MARGIN] if near >= MARGIN else values.dtype.type(0)
    high = sample[near + MARGIN] if near + MARGIN < sample.size else values.dtype.type(np.inf)
    between = values[(values >= low) & (values <= high) & (values > 0)]
    rank = between.size + int(np.count_nonzero(values > high)) - k
    if not 0 <= rank < between.size:
        between, rank = values, at
    between.partition(rank)
    found: np.floating[Any] = between[rank]
    return found
