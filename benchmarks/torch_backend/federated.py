"""A whole federated run in plain torch; it shares only the shares, cohorts and batches of a real run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsyedge.benchmarks.torch_backend.server import next_model
from sparsyedge.benchmarks.torch_backend.torch_device import Work, train_on_device
from sparsyedge.benchmarks.torch_backend.torch_tensors import Tensors, nonzeros
from sparsyedge.coordinator.rounds.cohort import Policy, sample_cohort
from sparsyedge.coordinator.rounds.learning_rates import learning_rate
from sparsyedge.edge.data import Dataset, Samples, share_out
from sparsyedge.edge.device.class_shares import class_shares
from sparsyedge.edge.inference.losses import RegressionErrors
from sparsyedge.edge.model.methods import Method
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model, prunable_names
from sparsyedge.export.reference import derive_exponents, effective_weights

__all__ = ["TorchRun", "run_rounds"]

EVALUATION_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class TorchRun:
    """The settings of a run, besides its data."""

    spec: ModelSpec
    method: Method
    devices: int
    cohort: int
    rounds: int
    seed: int
    alpha: float = 1.0
    partition_seed: int = 1337
    model_seed: int = 0
    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 0.5
    last_learning_rate: float = 0.01
    label_shift: float = 0.0
    selection: Policy = "uniform"
    eval_every: int = 1


def run_rounds(run: TorchRun, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield each round's figures when it ends, under the names of real records and metrics."""
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(run.spec, beta=run.method.beta, seed=run.model_seed).to(where)
    prunable = [name for name, _ in model.named_parameters() if name in prunable_names(model)]
    positions = _positions(model, prunable, torch.zeros(2, *run.spec.input_shape, device=where))
    names = [f"device-{index:0{max(3, len(str(run.devices - 1)))}d}" for index in range(run.devices)]
    parts = share_out(dataset.train, run.devices, run.alpha, run.partition_seed)
    shares = dict(zip(names, parts, strict=True))
    told = _told(dataset.train, shares, run.spec.classes) if run.selection == "balanced" else None
    state = _state(model)
    for number in range(1, run.rounds + 1):
        rate = learning_rate(number, run.rounds, start=run.learning_rate, end=run.last_learning_rate)
        updates, regrown = [], []
        cohort = sample_cohort(
            names,
            run.cohort,
            seed=run.seed,
            round_number=number,
            shares=run.method.shares,
            policy=run.selection,
            classes=told,
        )
        for device in cohort:
            samples = dataset.train.take(shares[device])
            work = Work(
                device=device,
                round_number=number,
                seed=run.seed,
                epochs=run.epochs,
                batch_size=run.batch_size,
                learning_rate=rate,
                label_shift=run.label_shift,
                classes=run.spec.classes,
            )
            update, trained = train_on_device(model, run.method, state, samples, work, positions)
            updates.append((len(samples), update))
            regrown.append(sum(int(((state[n] == 0) & (trained[n] != 0)).sum()) for n in prunable))
        before, state = state, next_model(run.method, updates, positions, round_number=number, rounds=run.rounds)
        figures = _compare(before, state, prunable) | _traffic(before, updates)
        figures |= {"round": number, "updates": len(updates), "learning_rate": rate}
        figures["regrown_devices"] = sum(regrown) / len(regrown)
        if number == run.rounds or number % run.eval_every == 0:
            figures |= evaluate(model, run.method, state, dataset.test, prunable)
        yield figures


@torch.no_grad()
def evaluate(
    model: nn.Module, method: Method, state: Tensors, samples: Samples, prunable: list[str]
) -> dict[str, float]:
    """Accuracy, or a regression's errors, and loss with running statistics, on the weights as sent or prescribed."""
    model.load_state_dict(state, strict=False)
    model.eval()
    where = next(model.parameters()).device
    used = method if method.inference == "trained" else msgspec.structs.replace(method, prune_weights="none")
    thetas = effective_weights(model, used, prunable, derive_exponents(model, method, prunable))
    correct, loss, errors = 0, 0.0, RegressionErrors()
    for start in range(0, len(samples), EVALUATION_BATCH):
        inputs, labels = samples.batch(np.arange(start, min(start + EVALUATION_BATCH, len(samples))))
        target = torch.from_numpy(labels).to(where)
        logits = torch.func.functional_call(model, thetas, (torch.from_numpy(inputs).to(where),))
        if samples.task == "regression":
            errors.add(logits.cpu().numpy(), labels)
            continue
        correct += int((logits.argmax(1) == target).sum())
        loss += float(nn.functional.cross_entropy(logits, target, reduction="sum"))
    if samples.task == "regression":
        return {"test_rmse": errors.rmse, "test_loss": errors.mse}
    return {"test_accuracy": correct / len(samples), "test_loss": loss / len(samples)}


def _told(samples: Samples, shares: Mapping[str, NDArray[np.int64]], classes: int) -> dict[str, bytes]:
    """What devices say of their classes."""
    return {name: bytes(class_shares(samples.y[part], classes)) for name, part in shares.items()}


@torch.no_grad()
def _positions(model: nn.Module, prunable: list[str], inputs: Tensor) -> dict[str, int]:
    """How many positions of a sample each layer applies its weights to."""
    found = dict.fromkeys(prunable, 1)

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        weight = layer.get_parameter("weight")
        found[names[layer]] = output.numel() // (len(inputs) * len(weight))

    layers = {name: model.get_submodule(name.rpartition(".")[0]) for name in prunable if name.endswith(".weight")}
    names = {layer: name for name, layer in layers.items()}
    hooks = [layer.register_forward_hook(note) for layer in names]
    was_training = model.training
    model.eval()(inputs)
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    return found


def _state(model: nn.Module) -> Tensors:
    return {
        name: value.detach().clone() for name, value in model.state_dict().items() if "num_batches_tracked" not in name
    }


def _compare(before: Tensors, after: Tensors, prunable: list[str]) -> dict[str, float]:
    old = torch.cat([before[name].reshape(-1) != 0 for name in prunable])
    new = torch.cat([after[name].reshape(-1) != 0 for name in prunable])
    both, either, kept = int((old & new).sum()), int((old | new).sum()), int(new.sum())
    return {
        "global_sparsity": 1 - kept / new.numel(),
        "mask_iou": both / either if either else math.nan,
        "nestedness": both / kept if kept else math.nan,
        "regrown_global": float((new & ~old).sum()),
    }


def _traffic(before: Tensors, updates: list[tuple[int, Tensors]]) -> dict[str, int]:
    """The number of values that would be sent; nothing is encoded here, so bytes count values only."""
    down = nonzeros(before, list(before)) * len(updates)
    up = sum(nonzeros(update, list(update)) for _, update in updates)
    dense = 4 * sum(value.numel() for value in before.values())
    return {
        "nonzeros_down": down,
        "nonzeros_up": up,
        "bytes_down": 4 * down,
        "bytes_up": 4 * up,
        "dense_bytes": dense,
    }
