"""What a device works with: its data, its files, its session, its meter and its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.data.form import Form
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.device.energy import EnergyMeter
from sparsyedge.edge.device.optimizer_memory import OptimizerMemory
from sparsyedge.edge.device.outbox import Outbox
from sparsyedge.edge.protocol.messages import Offer
from sparsyedge.edge.training.session_holder import SessionHolder

__all__ = ["DeviceFiles", "Equipment", "LocalData", "Power", "Signing"]


class LocalData:
    """The device's samples, also relabelled to match the model in training."""

    def __init__(self, samples: Samples, class_names: tuple[str, ...] = ()) -> None:
        """`class_names` names the classes behind the labels; empty if the data does not name them."""
        self.digest = samples.digest()
        self._samples = samples
        self._class_names = class_names
        self._fitted, self._fitted_to = samples, ""

    def __len__(self) -> int:
        return len(self._samples)

    def fit(self, form: Form, *, manifest: str) -> Samples:
        """Return the samples with the model's labels, fitted once per manifest (its hash).

        Raises DataError if the samples do not suit the model.
        """
        if self._fitted_to != manifest:
            self._fitted = fit_to_model(self._samples, self._class_names, form, owner="this device's data")
            self._fitted_to = manifest
        return self._fitted


class DeviceFiles:
    """The files under a device's folder."""

    def __init__(self, folder: Path, *, keeps_jobs: bool = True) -> None:
        """With `keeps_jobs`, an interrupted job continues after a restart."""
        self.cache = Cache(folder)
        self.outbox = Outbox(folder / "outbox")
        self.optimizer = OptimizerMemory(folder / "optimizer")
        self.downloads = folder / "downloads"
        self.job_path = folder / "job.checkpoint" if keeps_jobs else None


@dataclass(frozen=True)
class Power:
    """The meter, and what the device draws when idle."""

    meter: EnergyMeter
    idle_w: float | None = None


@dataclass(frozen=True)
class Signing:
    """The keys of a secured fleet; a fleet without an authority has none."""

    artifact_key: str | None = None
    """The device trains only artifacts signed with this key."""
    sign: Callable[[Offer], Offer] = lambda offer: offer
    """Signs an offer as this device."""
    ca: Path | None = None
    """The fleet's authority; beside the system's, it may vouch for a blob store."""


@dataclass(frozen=True)
class Equipment:
    """Everything that a device needs to make an update from a task."""

    data: LocalData
    files: DeviceFiles
    holder: SessionHolder
    power: Power
    signing: Signing = Signing()
