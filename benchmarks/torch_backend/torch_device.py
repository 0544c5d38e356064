"""One device's work in a round, in plain torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sparsyedge.benchmarks.torch_backend.torch_tensors import Tensors, prune, prune_globally
from sparsyedge.edge.data import Samples, epoch_order, split_batches
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.training.job_inputs import JobInputs
from sparsyedge.export.reference import backward, derive_exponents, keep_largest

__all__ = ["Work", "select_update", "train_on_device"]

GROWN = 1e-8


@dataclass(frozen=True, kw_only=True)
class Work:
    """A device's task in a round."""

    device: str
    round_number: int
    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    label_shift: float = 0.0
    classes: int = 0
    """Of the model; only a label shift needs it."""


def train_on_device(
    model: nn.Module, method: Method, received: Tensors, samples: Samples, work: Work, positions: Mapping[str, int]
) -> tuple[Tensors, Tensors]:
    """The device's update, and its model before pruning; `model` is only scratch space for training.

    `positions` names the prunable layers.
    """
    sparsity = method.sparsity_of(work.device, work.round_number)
    has_own_target = method.sparsities and work.round_number > 1
    start = prune(method, received, sparsity, positions) if has_own_target else received
    _load(model, start)
    _train(model, method, samples, work, list(positions))
    trained = {name: model.state_dict()[name].detach().clone() for name in start}
    return select_update(method, trained, start, positions, sparsity), trained


def _train(model: nn.Module, method: Method, samples: Samples, work: Work, prunable: Sequence[str]) -> None:
    model.train()
    where = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate, weight_decay=method.weight_decay)
    exponents = derive_exponents(model, method, prunable)
    thresholds: dict[str, float] = {}
    told = JobInputs(
        label_shift=_label_shift(samples, work.classes, work.label_shift) if work.label_shift else None,
        keeps_inputs=method.keeps_inputs(work.round_number),
    )
    for epoch in range(work.epochs):
        order = epoch_order(
            len(samples), seed=work.seed, round_number=work.round_number, device_id=work.device, epoch=epoch
        )
        batches = split_batches(order, work.batch_size)
        batches = [each for each in batches if len(each) > 1] or batches
        for number, indices in enumerate(batches):
            if method.prune_weights == "in-place":
                _forget_small_weights(model, method, prunable)
            if method.evolves_mask(work.round_number) and number == len(batches) // 2:
                _exchange(model, method, work, prunable)
            x, y = samples.batch(indices)
            optimizer.zero_grad()
            inputs, labels = torch.from_numpy(x).to(where), torch.from_numpy(y).to(where)
            backward(model, method, inputs, labels, exponents=exponents, thresholds=thresholds, inputs=told)
            optimizer.step()


def _label_shift(samples: Samples, classes: int, tau: float) -> FloatArray:
    counts = torch.bincount(torch.from_numpy(samples.y), minlength=classes).double() + 1
    shift: FloatArray = (tau * torch.log(counts / counts.max())).float().numpy()
    return shift


def _load(model: nn.Module, state: Tensors) -> None:
    model.load_state_dict(state, strict=False)


def select_update(
    method: Method, trained: Tensors, start: Tensors, positions: Mapping[str, int], sparsity: float
) -> Tensors:
    """The part of the trained model that the device sends."""
    if method.uplink == "whole":
        return trained
    if method.uplink == "weights":
        return prune(method, trained, sparsity, positions)
    prunable = list(positions)
    changes = prune_globally({name: trained[name] - start[name] for name in prunable}, prunable, sparsity)
    kept = {name: torch.where(changes[name] != 0, trained[name], start[name]) for name in prunable}
    return trained | kept


@torch.no_grad()
def _forget_small_weights(model: nn.Module, method: Method, prunable: Sequence[str]) -> None:
    for name in prunable[1:]:
        w = model.get_parameter(name)
        w.copy_(keep_largest(w, method.density))


@torch.no_grad()
def _exchange(model: nn.Module, method: Method, work: Work, prunable: Sequence[str]) -> None:
    """Move the places of each layer's smallest weights elsewhere, drawn from the devices' random stream."""
    device = int.from_bytes(hashlib.sha256(work.device.encode()).digest()[:8], "big")
    stream = np.random.Generator(np.random.PCG64([work.seed, work.round_number, device]))
    for name in prunable:
        flat = model.get_parameter(name).view(-1)
        present = torch.nonzero(flat).reshape(-1)
        count = int(method.regrow_rate * present.numel())
        flat[present[torch.argsort(flat[present].abs(), stable=True)[:count]]] = 0
        free = torch.nonzero(flat == 0).reshape(-1)
        drawn = np.argsort(stream.random(free.numel()), kind="stable")[:count]
        flat[free[_indices(drawn, free)]] = GROWN


def _indices(places: np.ndarray[tuple[int], np.dtype[np.int64]], like: Tensor) -> Tensor:
    return torch.from_numpy(places).to(like.device)
