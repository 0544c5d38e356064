"""Our ops as torch sees them: shapes and gradients, so that torch's own differentiation can carry them into a graph.

`substitute.py` puts them in place of torch's ops; `onnx_program.py` translates them into nodes. They also compute, in
plain torch, so that a traced program can be run and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["NAMES"]

NAMES: list[str] = []
"""All of our ops, in `torch.ops.sparsyedge`."""

Context = Any
"""What torch's autograd hands to the functions below; it has no public type that fits."""


def _operator(name: str, schema: str, compute: Callable[..., Any], shape: Callable[..., Any]) -> Any:
    NAMES.append(name)
    defined = torch.library.custom_op(f"sparsyedge::{name}", compute, mutates_args=(), schema=schema)
    defined.register_fake(shape)
    return defined


def _empty(like: Tensor, shape: Sequence[Any]) -> Tensor:
    return like.new_empty(tuple(shape))


# ---- prunable layers -------------------------------------------------------------------------------------------------
# A layer's weight gradient sees a pruned copy of its input, so it is an op of its own. `layer` names the weight.


def _linear(x: Tensor, w: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    return functional.linear(x, w, bias)


def _linear_grad_input(dy: Tensor, w: Tensor, layer: str) -> Tensor:
    return dy @ w


def _linear_grad_weight(x: Tensor, dy: Tensor, layer: str) -> Tensor:
    return dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])


_LINEAR = _operator(
    "linear",
    "(Tensor x, Tensor w, Tensor? bias, str layer) -> Tensor",
    _linear,
    lambda x, w, bias, layer: _empty(x, (*x.shape[:-1], w.shape[0])),
)
_operator(
    "linear_grad_input",
    "(Tensor dy, Tensor w, str layer) -> Tensor",
    _linear_grad_input,
    lambda dy, w, layer: _empty(dy, (*dy.shape[:-1], w.shape[1])),
)
_operator(
    "linear_grad_weight",
    "(Tensor x, Tensor dy, str layer) -> Tensor",
    _linear_grad_weight,
    lambda x, dy, layer: _empty(x, (dy.shape[-1], x.shape[-1])),
)


def _save_layer(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, layer = inputs
    ctx.save_for_backward(x, w)
    ctx.layer, ctx.has_bias = layer, bias is not None


def _linear_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    ours = torch.ops.sparsyedge
    dx = ours.linear_grad_input(dy, w, ctx.layer) if ctx.needs_input_grad[0] else None
    dw = ours.linear_grad_weight(x, dy, ctx.layer) if ctx.needs_input_grad[1] else None
    db = dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
    return dx, dw, db, None


_LINEAR.register_autograd(_linear_backward, setup_context=_save_layer)


def _pointwise(x: Tensor, w: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    y = torch.einsum("oi,ni...->no...", w.flatten(1), x)
    return y if bias is None else y + bias.reshape(1, -1, *[1] * (x.ndim - 2))


def _pointwise_grad_input(dy: Tensor, w: Tensor, layer: str) -> Tensor:
    return torch.einsum("oi,no...->ni...", w.flatten(1), dy)


def _pointwise_grad_weight(x: Tensor, dy: Tensor, layer: str) -> Tensor:
    dw = torch.einsum("nop,nip->oi", dy.flatten(2), x.flatten(2))
    return dw.reshape(*dw.shape, *[1] * (x.ndim - 2))


_POINTWISE = _operator(
    "pointwise",
    "(Tensor x, Tensor w, Tensor? bias, str layer) -> Tensor",
    _pointwise,
    lambda x, w, bias, layer: _empty(x, (x.shape[0], w.shape[0], *x.shape[2:])),
)
_operator(
    "pointwise_grad_input",
    "(Tensor dy, Tensor w, str layer) -> Tensor",
    _pointwise_grad_input,
    lambda dy, w, layer: _empty(dy, (dy.shape[0], w.shape[1], *dy.shape[2:])),
)
_operator(
    "pointwise_grad_weight",
    "(Tensor x, Tensor dy, str layer) -> Tensor",
    _pointwise_grad_weight,
    lambda x, dy, layer: _empty(x, (dy.shape[1], x.shape[1], *[1] * (x.ndim - 2))),
)


def _pointwise_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    ours = torch.ops.sparsyedge
    dx = ours.pointwise_grad_input(dy, w, ctx.layer) if ctx.needs_input_grad[0] else None
    dw = ours.pointwise_grad_weight(x, dy, ctx.layer) if ctx.needs_input_grad[1] else None
    db = dy.flatten(2).sum((0, 2)) if ctx.has_bias and ctx.needs_input_grad[2] else None
    return dx, dw, db, None


_POINTWISE.register_autograd(_pointwise_backward, setup_context=_save_layer)

_operator(
    "pruned_input",
    "(Tensor x, str layer) -> Tensor",
    lambda x, layer: x.clone(),
    lambda x, layer: torch.empty_like(x),
)


# ---- convolutions that compute dense ---------------------------------------------------------------------------------


# `padding` has the zeros in front of all axes, then those behind them, as in ONNX.
_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups, str layer"


def _both(padding: list[int]) -> list[int]:
    """Zeros on both sides of every axis together; `padding` has those in front of all axes, then those behind."""
    half = len(padding) // 2
    return [front + back for front, back in zip(padding[:half], padding[half:], strict=True)]


def _pad(x: Tensor, padding: list[int]) -> tuple[Tensor, list[int]]:
    """The padded tensor, and what is left to pad: torch takes both sides alike or none."""
    half = len(padding) // 2
    front, back = padding[:half], padding[half:]
    if front == back:
        return x, front
    sides = [side for pair in zip(reversed(front), reversed(back), strict=True) for side in pair]
    return functional.pad(x, sides), [0] * half


def _convolution(
    x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int, layer: str
) -> Tensor:
    whole, rest = _pad(x, padding)
    return torch.convolution(whole, w, None, stride, rest, dilation, False, [0] * len(stride), groups)


def _convolution_shape(
    x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int, layer: str
) -> Tensor:
    plane = [
        (size + pad - step * (kernel - 1) - 1) // leap + 1
        for size, kernel, leap, pad, step in zip(
            x.shape[2:], w.shape[2:], stride, _both(padding), dilation, strict=True
        )
    ]
    return _empty(x, (x.shape[0], w.shape[0], *plane))


_CONVOLUTION = _operator(
    "convolution",
    f"(Tensor x, Tensor w, {_GEOMETRY}) -> Tensor",
    _convolution,
    _convolution_shape,
)


def _save_convolution(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, *ctx.geometry, ctx.layer = inputs
    ctx.save_for_backward(x, w)


def _convolution_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    ours, geometry = torch.ops.sparsyedge, ctx.geometry
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = ours.convolution_grad_input(dy, w, list(x.shape[2:]), *geometry, ctx.layer)
    if ctx.needs_input_grad[1]:
        pruned = ours.pruned_input(x, ctx.layer)
        dw = ours.convolution_grad_weight(pruned, dy, list(w.shape[2:]), *geometry, ctx.layer)
    return dx, dw, None, None, None, None, None


_CONVOLUTION.register_autograd(_convolution_backward, setup_context=_save_convolution)


def _convolution_grad_input(
    dy: Tensor,
    w: Tensor,
    plane: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    layer: str,
) -> Tensor:
    half = len(plane)
    whole, rest = _pad(dy.new_empty((dy.shape[0], w.shape[1] * groups, *plane)), padding)
    dx: Tensor = torch.ops.aten.convolution_backward(
        dy, whole, w, None, stride, rest, dilation, False, [0] * half, groups, [True, False, False]
    )[0]
    for axis, (front, size) in enumerate(zip(padding[:half], plane, strict=True)):
        dx = dx if dx.shape[2 + axis] == size else dx.narrow(2 + axis, front, size)
    return dx


def _convolution_grad_weight(
    x: Tensor,
    dy: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    layer: str,
) -> Tensor:
    w = dy.new_empty((dy.shape[1], x.shape[1] // groups, *kernel))
    whole, rest = _pad(x, padding)
    dw: Tensor = torch.ops.aten.convolution_backward(
        dy, whole, w, None, stride, rest, dilation, False, [0] * len(stride), groups, [False, True, False]
    )[1]
    return dw


_operator(
    "convolution_grad_input",
    f"(Tensor dy, Tensor w, int[] plane, {_GEOMETRY}) -> Tensor",
    _convolution_grad_input,
    lambda dy, w, plane, *rest: _empty(dy, (dy.shape[0], w.shape[1] * rest[3], *plane)),
)
_operator(
    "convolution_grad_weight",
    f"(Tensor x, Tensor dy, int[] kernel, {_GEOMETRY}) -> Tensor",
    _convolution_grad_weight,
    lambda x, dy, kernel, *rest: _empty(dy, (dy.shape[1], x.shape[1] // rest[3], *kernel)),
)


def _transposed_shape(
    x: Tensor,
    w: Tensor,
    extra: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    layer: str,
) -> Tensor:
    sides = zip(x.shape[2:], w.shape[2:], extra, stride, _both(padding), dilation, strict=True)
    plane = [(size - 1) * leap - pad + step * (kernel - 1) + more + 1 for size, kernel, more, leap, pad, step in sides]
    return _empty(x, (x.shape[0], w.shape[1] * groups, *plane))


_TRANSPOSED = _operator(
    "transposed_convolution",
    f"(Tensor x, Tensor w, int[] extra, {_GEOMETRY}) -> Tensor",
    lambda x, w, extra, stride, padding, dilation, groups, layer: torch.convolution(
        x, w, None, stride, padding[: len(stride)], dilation, True, extra, groups
    ),
    _transposed_shape,
)


def _save_transposed(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, _, *ctx.geometry, ctx.layer = inputs
    ctx.save_for_backward(x, w)


def _transposed_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Its gradients are those of the convolution that goes the other way."""
    x, w = ctx.saved_tensors
    ours, geometry = torch.ops.sparsyedge, ctx.geometry
    dx = ours.convolution(dy, w, *geometry, ctx.layer) if ctx.needs_input_grad[0] else None
    dw = None
    if ctx.needs_input_grad[1]:
        pruned = ours.pruned_input(x, ctx.layer)
        dw = ours.convolution_grad_weight(dy, pruned, list(w.shape[2:]), *geometry, ctx.layer)
    return dx, dw, None, None, None, None, None, None


_TRANSPOSED.register_autograd(_transposed_backward, setup_context=_save_transposed)


# ---- ops that plain graphs compute slowly ----------------------------------------------------------------------------


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(x, [x.shape[-1]], gamma, beta, epsilon)


def _layer_norm_shape(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    each = (*x.shape[:-1], 1)
    return torch.empty_like(x), _empty(x, each), _empty(x, each)


def _layer_norm_grad(
    dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[-1]], mean, inv_std, gamma, gamma, [True, True, True]
    )
    return gradients


_LAYER_NORM = _operator(
    "layer_norm",
    "(Tensor x, Tensor gamma, Tensor beta, float epsilon) -> (Tensor, Tensor, Tensor)",
    _layer_norm,
    _layer_norm_shape,
)
_operator(
    "layer_norm_grad",
    "(Tensor dy, Tensor x, Tensor mean, Tensor inv_std, Tensor gamma) -> (Tensor, Tensor, Tensor)",
    _layer_norm_grad,
    lambda dy, x, mean, inv_std, gamma: (torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)),
)


def _save_norm(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """For both norms: their outputs are y, the mean and the inverse deviation, then whatever has no gradient."""
    ctx.save_for_backward(inputs[0], inputs[1], output[1], output[2])
    ctx.mark_non_differentiable(*output[1:])


def _layer_norm_backward(ctx: Context, dy: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    x, gamma, mean, inv_std = ctx.saved_tensors
    return (*torch.ops.sparsyedge.layer_norm_grad(dy, x, mean, inv_std, gamma), None)


_LAYER_NORM.register_autograd(_layer_norm_backward, setup_context=_save_norm)


def _batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, momentum: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    new_mean, new_variance = mean.clone(), variance.clone()
    y, saved_mean, saved_inv_std = torch.native_batch_norm(
        x, gamma, beta, new_mean, new_variance, True, momentum, epsilon
    )
    return y, saved_mean, saved_inv_std, new_mean, new_variance


_BATCH_NORM = _operator(
    "batch_norm",
    "(Tensor x, Tensor gamma, Tensor beta, Tensor mean, Tensor variance, float momentum, float epsilon) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _batch_norm,
    lambda x, gamma, beta, mean, variance, momentum, epsilon: (
        torch.empty_like(x),
        *(torch.empty_like(mean) for _ in range(4)),
    ),
)
_operator(
    "batch_norm_grad",
    "(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor inv_std) -> (Tensor, Tensor, Tensor)",
    lambda dy, x, gamma, mean, inv_std: torch.ops.aten.native_batch_norm_backward(
        dy, x, gamma, None, None, mean, inv_std, True, 0.0, [True, True, True]
    ),
    lambda dy, x, gamma, mean, inv_std: (torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)),
)


def _batch_norm_backward(ctx: Context, dy: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    x, gamma, mean, inv_std = ctx.saved_tensors
    return (*torch.ops.sparsyedge.batch_norm_grad(dy, x, gamma, mean, inv_std), None, None, None, None)


_BATCH_NORM.register_autograd(_batch_norm_backward, setup_context=_save_norm)


def _approximation(tanh: bool) -> str:
    return "tanh" if tanh else "none"


_GELU = _operator(
    "gelu",
    "(Tensor x, bool tanh) -> Tensor",
    lambda x, tanh: functional.gelu(x, approximate=_approximation(tanh)),
    lambda x, tanh: torch.empty_like(x),
)
_operator(
    "gelu_grad",
    "(Tensor dy, Tensor x, bool tanh) -> Tensor",
    lambda dy, x, tanh: torch.ops.aten.gelu_backward(dy, x, approximate=_approximation(tanh)),
    lambda dy, x, tanh: torch.empty_like(x),
)


def _save_gelu(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.tanh = inputs
    ctx.save_for_backward(x)


_GELU.register_autograd(
    lambda ctx, dy: (torch.ops.sparsyedge.gelu_grad(dy, *ctx.saved_tensors, ctx.tanh), None),
    setup_context=_save_gelu,
)

_SOFTMAX = _operator(
    "softmax",
    "(Tensor x) -> Tensor",
    lambda x: torch.softmax(x, -1),
    lambda x: torch.empty_like(x),
)
_operator(
    "softmax_grad",
    "(Tensor dy, Tensor y) -> Tensor",
    lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)),
    lambda dy, y: torch.empty_like(y),
)


def _save_softmax(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


_SOFTMAX.register_autograd(
    lambda ctx, dy: torch.ops.sparsyedge.softmax_grad(dy, *ctx.saved_tensors), setup_context=_save_softmax
)


def _dropout(x: Tensor, seed: Tensor, ratio: float, stream: int) -> Tensor:
    raise RuntimeError("dropout draws its mask on the device; a program with dropout is only traced here")


_DROPOUT = _operator(
    "dropout",
    "(Tensor x, Tensor seed, float ratio, int stream) -> Tensor",
    _dropout,
    lambda x, seed, ratio, stream: torch.empty_like(x),
)


def _save_dropout(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, seed, ctx.ratio, ctx.stream = inputs
    ctx.save_for_backward(seed)


_DROPOUT.register_autograd(
    # The mask is a function of seed, stream and position: the same op, applied to the gradient.
    lambda ctx, dy: (torch.ops.sparsyedge.dropout(dy, *ctx.saved_tensors, ctx.ratio, ctx.stream), None, None, None),
    setup_context=_save_dropout,
)
