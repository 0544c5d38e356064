"""The workloads of `bench device --suite`: names, networks, image sizes, what trains and how sparse."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from sparsyedge.edge.errors import ConfigError

__all__ = ["BATCH", "CLASSES", "SUITES", "SuiteWorkload", "chosen"]

BATCH = 16
CLASSES = 10
LAST = "last:1"


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network at an image size, with its measure: what a machine without torch must know of it."""

    title: str
    model: str
    """Of the zoo, or `package.module:CALLABLE`."""
    pixels: int
    width: int = 64
    parameters: int
    activations: int
    """Numbers that the layers of one image's forward pass give, as a measure of memory; attention is left out."""


@dataclass(frozen=True, kw_only=True)
class SuiteWorkload:
    """One row of a suite."""

    network: Network
    train: str = "all"
    sparsity: float = 0.0
    """Random zeros in every prunable weight; 0 trains densely, with the method `dense`."""

    @property
    def name(self) -> str:
        """As in results and for `--only`."""
        kind = "last" if self.train != "all" else f"sparse{100 * self.sparsity:g}" if self.sparsity else "dense"
        return f"{self.network.title}-{self.network.pixels}-{kind}"

    @property
    def method(self) -> str:
        """What the artifacts are exported for."""
        return "sparsyfed" if self.sparsity else "dense"

    @property
    def artifacts(self) -> str:
        """The folder of its artifacts; workloads that differ in their sparsity alone share one."""
        kind = self.method if self.train == "all" else "last"
        return f"{self.network.title}-{self.network.pixels}-{kind}"


OWN = "sparsyedge.benchmarks.device.networks"
LARGE = (
    Network(title="resnet18", model="resnet18-7x7", pixels=224, parameters=11_181_642, activations=5_168_138),
    Network(title="resnet50", model=f"{OWN}:ResNet50", pixels=224, parameters=23_528_522, activations=22_428_682),
    Network(
        title="mobilenet_v2", model=f"{OWN}:mobilenet_v2", pixels=224, parameters=2_236_682, activations=19_462_026
    ),
    Network(title="vit_tiny", model="vit_tiny_patch16_224", pixels=224, parameters=5_526_346, activations=5_068_234),
)
SMALL = (
    Network(title="resnet18", model="resnet18", pixels=32, parameters=11_173_962, activations=1_294_346),
    Network(title="mobilenet_v2", model="mobilenet_v2", pixels=32, parameters=2_236_682, activations=1_588_746),
    Network(title="vit_tiny", model="vit_tiny", pixels=32, parameters=5_362_762, activations=1_672_138),
)
TINY = Network(title="resnet18w4", model="resnet18", pixels=32, width=4, parameters=44_622, activations=80_906)
SPARSITIES = (0.5, 0.9, 0.95)


def _rows(network: Network) -> list[SuiteWorkload]:
    rows = [SuiteWorkload(network=network), SuiteWorkload(network=network, train=LAST)]
    return [*rows, *(SuiteWorkload(network=network, sparsity=sparsity) for sparsity in SPARSITIES)]


SUITES: dict[str, tuple[SuiteWorkload, ...]] = {
    "field": tuple(row for network in (*SMALL, *LARGE) for row in _rows(network)),
    "smoke": tuple(_rows(TINY)),
}
"""`field`: the networks of published tables of boards, and ours. `smoke`: seconds, to try the command."""


def chosen(suite: str, only: str | None) -> tuple[SuiteWorkload, ...]:
    """The suite's workloads that match one of the patterns, separated by commas; raises ConfigError if none does."""
    workloads = SUITES[suite]
    if only is None:
        return workloads
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(workload.name, pattern) for workload in workloads):
            names = ", ".join(workload.name for workload in workloads)
            raise ConfigError(f"--only has {pattern!r}, which matches no workload of suite {suite}; there are: {names}")
    found = tuple(each for each in workloads if any(fnmatchcase(each.name, pattern) for pattern in patterns))
    if not found:
        raise ConfigError(f"--only {only!r} names no workload; give names or patterns such as 'resnet18-224-*'")
    return found
