"""The training method in plain torch, independent of the graphs; exports are checked against it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.training import OPTIMIZER_STEPS, PLAIN_SGD, Training
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.export.dropout_mask import dropout_mask
from sparsyedge.export.models import layer_weights
from sparsyedge.export.own_module import train_mode

__all__ = [
    "RELU6_LIMIT",
    "Choices",
    "ReferenceStep",
    "backward",
    "derive_exponents",
    "effective_weights",
    "keep_largest",
    "load_optimizer_state",
    "make_optimizer",
    "optimizer_state",
    "prune_activation",
    "reference_step",
    "reparametrise",
]

RELU6_LIMIT = 6.0


@dataclass
class ReferenceStep:
    """One training step in torch, with its discrete choices."""

    loss: float
    gradients: State
    """By parameter name, weight decay included unless the optimizer decouples it; before clipping."""
    relu_signs: list[Tensor] = field(default_factory=list)
    kept_activations: dict[str, Tensor] = field(default_factory=dict)
    """The layer inputs that fed the weight gradient, by the weight's name."""


@dataclass
class Choices:
    """The discrete choices of one step."""

    relu_signs: list[Tensor] = field(default_factory=list)
    kept_activations: dict[str, Tensor] = field(default_factory=dict)


def reference_step(
    model: nn.Module,
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    learning_rate: float,
    exponents: Mapping[str, float] | None = None,
    thresholds: dict[str, float] | None = None,
    training: Training = PLAIN_SGD,
    optimizer: torch.optim.Optimizer | None = None,
    mixed: Mixed | None = None,
    prunable: Sequence[str] | None = None,
    dropout_seed: int = 0,
    inputs: JobInputs = NO_INPUTS,
) -> ReferenceStep:
    """Take one step on the model in place, including BatchNorm's statistics; `backward` explains the arguments.

    `optimizer`, from `make_optimizer`, carries its memory from step to step.
    """
    train_mode(model)
    optimizer = optimizer or make_optimizer(model, method, training)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad()
    loss, choices = backward(
        model,
        method,
        x,
        y,
        exponents=exponents,
        thresholds=thresholds,
        training=training,
        mixed=mixed,
        prunable=prunable,
        dropout_seed=dropout_seed,
        inputs=inputs,
    )
    decay = 0.0 if training.optimizer == "adamw" else method.weight_decay
    gradients = {
        name: (w.grad + decay * w).detach().cpu().numpy().copy()
        for name, w in model.named_parameters()
        if w.grad is not None
    }
    if training.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
    optimizer.step()
    return ReferenceStep(loss, gradients, choices.relu_signs, choices.kept_activations)


def make_optimizer(model: nn.Module, method: Method, training: Training) -> torch.optim.Optimizer:
    """The optimizer of torch that the training stands for, without any memory yet; every step sets the rate."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if training.optimizer == "adamw":
        beta1, beta2 = training.betas
        return torch.optim.AdamW(
            parameters, betas=(beta1, beta2), eps=training.epsilon, weight_decay=method.weight_decay
        )
    return torch.optim.SGD(
        parameters,
        momentum=training.momentum,
        nesterov=training.nesterov,
        weight_decay=method.weight_decay,
    )


# Our names for what torch's optimizers keep.
MEMORY = {".momentum": "momentum_buffer", ".first_moment": "exp_avg", ".second_moment": "exp_avg_sq"}


def optimizer_state(model: nn.Module, training: Training, optimizer: torch.optim.Optimizer) -> State:
    """What torch's optimizer remembers, by the names of `Session.optimizer_state`; zeros before the first step."""
    state: State = {}
    steps = 0.0
    for name, parameter in model.named_parameters():
        found = optimizer.state.get(parameter, {})
        for suffix in training.state_suffixes:
            value = found.get(MEMORY[suffix])
            state[f"{name}{suffix}"] = (torch.zeros_like(parameter) if value is None else value).detach().cpu().numpy()
        steps = float(found.get("step", steps))
    state = {name: value.copy() for name, value in state.items()}
    return state | ({OPTIMIZER_STEPS: np.array([steps], dtype=np.float32)} if training.counts_steps else {})


def load_optimizer_state(
    model: nn.Module, training: Training, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Give torch's optimizer a memory by those names."""
    for name, parameter in model.named_parameters():
        for suffix in training.state_suffixes:
            value = torch.tensor(state[f"{name}{suffix}"]).to(parameter)
            optimizer.state[parameter][MEMORY[suffix]] = value
        if training.counts_steps:
            optimizer.state[parameter]["step"] = torch.tensor(float(state[OPTIMIZER_STEPS][0]))


def backward(
    model: nn.Module,
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    exponents: Mapping[str, float] | None = None,
    thresholds: dict[str, float] | None = None,
    training: Training = PLAIN_SGD,
    mixed: Mixed | None = None,
    prunable: Sequence[str] | None = None,
    dropout_seed: int = 0,
    inputs: JobInputs = NO_INPUTS,
) -> tuple[float, Choices]:
    """Run forward and backward on one batch; leaves gradients, without weight decay, in the parameters.

    `exponents` are the layers' exponents from the start of the round; without them, this step derives its own.
    `thresholds` are the round's input thresholds so far, for methods that keep them; the step adds new ones.
    `training` says how labels are smoothed, `mixed` what samples are mixed with, `inputs` what holds for the whole job.
    `prunable` are all convolutions and linear layers if left out.
    """
    prunable = layer_weights(model) if prunable is None else prunable
    thetas = effective_weights(model, method, prunable, exponents or derive_exponents(model, method, prunable))
    # If the target sets the density of inputs, the first layer's input stays whole.
    pruned = prunable[1:] if method.activation_density == "target" else prunable
    prunes = method.prune_activations and not inputs.keeps_inputs
    weights = {id(thetas[name]): name for name in pruned} if prunes else {}
    mode = _MethodMode(weights, method, {} if thresholds is None else thresholds, dropout_seed)
    with mode:
        logits = torch.func.functional_call(model, {**dict(model.named_parameters()), **thetas}, (x,))
    if inputs.label_shift is not None:
        logits = logits + torch.from_numpy(inputs.label_shift).to(logits)
    loss = _loss(logits, y, training.label_smoothing, mixed)
    loss.backward()  # type: ignore[no-untyped-call]
    if method.masks_gradients:
        _mask_gradients(model, prunable)
    if method.freezes_zero_biases:
        _mask_gradients(model, [name for name, _ in model.named_parameters() if name not in prunable])
    return float(loss.detach()), mode.choices


def _loss(logits: Tensor, y: Tensor, smoothing: float, mixed: Mixed | None) -> Tensor:
    if y.is_floating_point():
        return functional.mse_loss(logits, y)
    loss = functional.cross_entropy(logits, y, label_smoothing=smoothing)
    if mixed is None:
        return loss
    other = torch.from_numpy(mixed.labels).to(y.device)
    return mixed.share * loss + (1 - mixed.share) * functional.cross_entropy(logits, other, label_smoothing=smoothing)


def derive_exponents(model: nn.Module, method: Method, prunable: Sequence[str]) -> dict[str, float]:
    """The exponent of each layer: derived from its weights under auto-beta, otherwise the method's beta."""
    if method.reparametrisation != "auto-beta":
        return dict.fromkeys(prunable, method.beta)
    exponents = {}
    with torch.no_grad():
        for name in prunable:
            w = model.get_parameter(name)
            scale = w.abs().max() if method.exponent == "max" else _spectral_norm(w)
            exponents[name] = 1 + float(w.abs().mean() / scale) if bool(w.any()) else 1.5
    return exponents


def effective_weights(
    model: nn.Module, method: Method, prunable: Sequence[str], exponents: Mapping[str, float]
) -> dict[str, Tensor]:
    """The weights that the layers use in a training step, by name; gradients reach the model's parameters."""
    thetas = {}
    for position, name in enumerate(prunable):
        w = model.get_parameter(name)
        theta = w * w.abs() / _norm(method, w) if method.reparametrisation == "spectral" else _power(w, exponents[name])
        if method.prune_weights != "none" and position > 0:
            # Straight-through: every weight gets the gradient, kept or not.
            theta = theta + (keep_largest(theta.detach(), method.density) - theta.detach())
        thetas[name] = theta
    return thetas


def reparametrise(w: Tensor, beta: float) -> Tensor:
    """theta = sign(w)|w|^beta. With beta = 1 this is the weight itself, and zeros have gradients."""
    return _power(w, beta)


def _power(w: Tensor, beta: float) -> Tensor:
    # Always a new tensor: we identify layers by their weight tensor.
    return w.view_as(w) if beta == 1 else torch.sign(w) * torch.abs(w) ** beta


def _spectral_norm(w: Tensor) -> Tensor:
    """The norm of |W| after one power iteration from ones."""
    matrix = w.abs().flatten(1)
    left = matrix.sum(dim=1)
    left = left / torch.sqrt((left * left).sum() + 1e-12)
    right = matrix.T @ left
    return torch.sqrt((right * right).sum() + 1e-12)


def _norm(method: Method, w: Tensor) -> Tensor:
    """What `spectral` divides by: an estimate of the norm of |W|, or the norm of W."""
    if not method.has_exact_norm:
        return _spectral_norm(w)
    return torch.sqrt(torch.linalg.matrix_norm(w.flatten(1), 2) ** 2 + 1e-12)


def _mask_gradients(model: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        w = model.get_parameter(name)
        if w.grad is not None:
            w.grad[w.detach() == 0] = 0


def prune_activation(x: Tensor, weight: Tensor, *, least: Fraction = Fraction(0)) -> Tensor:
    """The copy of a layer's input that feeds its weight gradient: the largest |x|, as dense as the weights."""
    return keep_largest(x, max(_density(weight), least))


def _density(weight: Tensor) -> Fraction:
    return Fraction(int(torch.count_nonzero(weight)), weight.numel())


def keep_largest(x: Tensor, density: Fraction) -> Tensor:
    """The largest |x|, at least one, including all ties."""
    return _keep_from(x, _threshold(x, density))


def _threshold(x: Tensor, density: Fraction) -> float:
    """The smallest magnitude to keep; 0 keeps all."""
    keep = max(1, math.ceil(density * x.numel()))
    return 0.0 if keep >= x.numel() else float(torch.topk(x.abs().reshape(-1), keep).values[-1])


def _keep_from(x: Tensor, threshold: float) -> Tensor:
    return torch.where(x.abs() >= threshold, x, torch.zeros_like(x))


LAYERS = (
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    functional.linear,
)
RECTIFIERS = (torch.relu, functional.relu, functional.relu6, functional.hardtanh)


def _passes(
    func: Callable[..., Any], y: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Where a rectifier passes the gradient; the limits are hardtanh's, and the rest of its signature."""
    if func is functional.hardtanh:
        return (y > min_val) & (y < max_val)
    return (y > 0) & (y < RELU6_LIMIT) if func is functional.relu6 else y > 0


def _attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> None:
    """The signature of torch's attention, which it does not tell."""


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    channels: int,
    heads: int,
    in_weight: Tensor,
    in_bias: Tensor | None,
    bias_k: Any,
    bias_v: Any,
    add_zero: bool,
    ratio: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    **_: Any,
) -> Tensor:
    """Self-attention by its layers, which torch's function hides from a mode; (tokens, batch, channels) in and out."""
    if query is not key or key is not value:
        raise ArtifactError("nn.MultiheadAttention trains on devices with one tensor as query, key and value")
    tokens, samples, _channels = query.shape
    projected = functional.linear(query, in_weight, in_bias)
    parts = projected.reshape(tokens, samples, 3, heads, channels // heads).permute(2, 1, 3, 0, 4)
    query, key, value = parts.unbind(0)
    seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=ratio if training else 0.0)
    return functional.linear(seen.permute(2, 0, 1, 3).reshape(tokens, samples, channels), out_weight, out_bias)


class _MethodMode(TorchFunctionMode):
    """Gives the layers of the named weights (by tensor `id`) the method's backward; records signs and masks."""

    def __init__(
        self, weights: Mapping[int, str], method: Method, thresholds: dict[str, float], dropout_seed: int
    ) -> None:
        super().__init__()
        self._dropout_seed = dropout_seed
        self._dropouts = 0
        self._weights = weights
        self._method = method
        self._thresholds = thresholds
        self.choices = Choices()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in RECTIFIERS:
            output = func(*args, **kwargs)
            self.choices.relu_signs.append(_passes(func, output.detach(), *args[1:], **kwargs))
            return output
        if func in LAYERS and id(args[1]) in self._weights:
            return self._layer(func, *args, **kwargs)
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            call = inspect.signature(_attention_call).bind(*args, **kwargs)
            if call.arguments.get("dropout_p"):
                query, key, value = args[:3]
                return self._attention(query, key, value, call.arguments["dropout_p"])
        if func is functional.multi_head_attention_forward:
            with self:
                return _multi_head_attention(*args, **kwargs), None
        return func(*args, **kwargs)

    def _layer(self, func: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        """The layer's output on the whole input; its weight gradient sees only the pruned input."""
        name = self._weights[id(weight)]
        pruned = self._pruned(name, x.detach(), weight.detach(), linear=func is functional.linear)
        self.choices.kept_activations[name] = pruned != 0
        for_weight = func(pruned, weight, bias, *rest)
        return func(x, weight.detach(), None if bias is None else bias.detach(), *rest) + (
            for_weight - for_weight.detach()
        )

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Dropout with the mask that a device draws: its own for each one of the network, in their order."""
        if not training or p == 0:
            return x
        kept = dropout_mask(self._dropout_seed, self._dropouts, x.numel(), p)
        self._dropouts += 1
        return x * torch.from_numpy(kept.reshape(tuple(x.shape))) / (1 - p)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, ratio: float) -> Tensor:
        """Attention whose weights are dropped as on a device."""
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        return self._dropout(torch.softmax(scores, -1), ratio) @ value

    def _pruned(self, name: str, x: Tensor, weight: Tensor, *, linear: bool) -> Tensor:
        method = self._method
        if method.activation_density == "target":
            return keep_largest(x, method.density)
        if method.activation_threshold == "step" or linear:
            return prune_activation(x, weight, least=method.least_activations)
        if name not in self._thresholds and _density(weight) < 1:
            self._thresholds[name] = _threshold(x, max(_density(weight), method.least_activations))
        return _keep_from(x, self._thresholds.get(name, 0.0))
