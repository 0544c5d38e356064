"""The peer SparseProp (Nikdan et al., ICML 2023): sparse backpropagation for torch on AVX2, from PyPI.

It is optional. Version 0.1.14 works with torch 2.13 and Python 3.11, once it is installed:

    pip install pybind11 setuptools wheel
    pip install --no-build-isolation sparseprop

Plain `pip install sparseprop` stops at `pybind11/pybind11.h: No such file`: its setup.py asks `python3 -m pybind11` for
the headers, which pip's isolated build does not have. It needs g++ and compiles for the CPU it is built on.

It trains the plain dense model's weights under a fixed mask: neither Powerpropagation nor activation pruning.
Its forward pass is wrong for batches that are no multiple of 8 (seen for 1, 4, 6 and 12); the comparison of losses then
reports it.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import time
from typing import cast

import torch
from torch import nn

from sparsyedge.benchmarks.step.peers_torch import TorchStep, dense_model
from sparsyedge.benchmarks.step.workload import Workload

__all__ = ["SparsePropStep"]

# It times every layer once, dense and sparse, and so chooses other layers every time: the best of a few choices counts.
CHOICES = 3
TRIAL_STEPS = 3


class SparsePropStep(TorchStep):
    """A torch model in which SparseProp has replaced the layers that it finds faster sparse."""

    def __init__(self, workload: Workload, *, variant: str) -> None:
        torch.set_num_threads(workload.threads)
        choices = (_swapped(workload) for _ in range(CHOICES))
        super().__init__(workload, min(choices, key=lambda model: _trial_s(workload, model)))


def _swapped(workload: Workload) -> nn.Module:
    """The plain model after SparseProp's own choice of layers, which it also prints."""
    try:
        # After torch, always: SparseProp then shares torch's OpenMP, and with it the number of threads.
        sparseprop = importlib.import_module("sparseprop.utils")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; `pip install --no-build-isolation sparseprop` builds it, with pybind11") from error
    with contextlib.redirect_stdout(io.StringIO()):
        model = sparseprop.swap_modules_with_sparse(dense_model(workload), workload.x.shape, inplace=True)
    return cast("nn.Module", model)


def _trial_s(workload: Workload, model: nn.Module) -> float:
    """The shortest of a few steps, taken on a copy so that the model itself still starts from the workload's state."""
    contestant = TorchStep(workload, copy.deepcopy(model))
    seconds = []
    for _ in range(TRIAL_STEPS):
        start = time.perf_counter()
        contestant.step()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
