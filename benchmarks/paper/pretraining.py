"""A central training before a federated one: a model in plain torch on half of CIFAR-10's classes.

It stands in for the paper's ViT, which was trained on far more images than fit here. Devices then learn the other half.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from sparsyedge.benchmarks.paper.settings import Pretraining
from sparsyedge.edge.data import Dataset, Samples, epoch_order, split_batches
from sparsyedge.edge.data.form import form_of
from sparsyedge.edge.model.training import Training
from sparsyedge.edge.storage import sha256_file, write_atomically
from sparsyedge.edge.training.augment import StepKey, augment, background
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model, layer_weights

__all__ = ["pretrain"]

log = logging.getLogger(__name__)

NAME = "pretraining"
AUGMENTATION = Training(crop=4, flip=True)
WEIGHT_DECAY = 0.05


def pretrain(wanted: Pretraining, dataset: Dataset, path: Path, *, model: str, width: int) -> dict[str, Any]:
    """Train a model of the zoo and save its weights without the last layer; returns what there is to know about them.

    Blocks for minutes. The weights are theta, what the model computes with.
    """
    torch.set_num_threads(1)  # more would change the last bits of the weights
    module = build_model(ModelSpec.for_data(model, width, form_of(dataset)), beta=1.0, seed=wanted.seed)
    loss = _train(module, wanted, dataset.train)
    accuracy = _accuracy(module, dataset.test)
    head = layer_weights(module)[-1].removesuffix("weight")
    kept = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith(head)}
    write_atomically(path, save(kept))
    return {
        "classes": list(dataset.names),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "loss": loss,
        "test_accuracy": accuracy,
        "sha256": sha256_file(path),
    }


def _train(model: nn.Module, wanted: Pretraining, samples: Samples) -> float:
    """Train in place; returns the mean loss of the last epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), wanted.learning_rate, weight_decay=WEIGHT_DECAY)
    steps = wanted.epochs * math.ceil(len(samples) / wanted.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    mean = math.nan
    for epoch in range(wanted.epochs):
        losses = []
        for x, y in _batches(samples, wanted, epoch):
            optimizer.zero_grad()
            loss: Tensor = functional.cross_entropy(model(x), y)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        log.info("pretraining, epoch %d of %d: loss %.3f", epoch + 1, wanted.epochs, mean)
    return mean


def _batches(samples: Samples, wanted: Pretraining, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch, shuffled and augmented as on a device."""
    order = epoch_order(len(samples), seed=wanted.seed, round_number=0, device_id=NAME, epoch=epoch)
    for step, indices in enumerate(split_batches(order, wanted.batch_size)):
        key = StepKey(wanted.seed, 0, NAME, epoch, step)
        x, y, _ = augment(AUGMENTATION, *samples.batch(indices), key, fill=background(samples.x.dtype))
        yield torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y)


def _accuracy(model: nn.Module, samples: Samples) -> float:
    right = 0
    with torch.no_grad():
        for batch in split_batches(np.arange(len(samples)), 256):
            x, y = samples.batch(batch)
            right += int((model(torch.from_numpy(x)).argmax(1).numpy() == y).sum())
    return right / len(samples)
