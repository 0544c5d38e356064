"""Many devices on one machine: the coordinator and the agents of real runs, with another link between them."""

from sparsyedge.benchmarks.simulate.data_used import read_data_used
from sparsyedge.benchmarks.simulate.simulated_device import Backend
from sparsyedge.benchmarks.simulate.simulation import LinkKind, simulate

__all__ = ["Backend", "LinkKind", "read_data_used", "simulate"]
