"""Federated runs of every method in plain torch, on a GPU if there is one; independent of graphs and devices."""

from sparsyedge.benchmarks.torch_backend.federated import TorchRun, run_rounds

__all__ = ["TorchRun", "run_rounds"]
