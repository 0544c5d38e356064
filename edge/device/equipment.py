"""What a device works with: its data, its files, its session, its meter and its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import UNSET

from sparsyedge.edge.compatibility import CALIBRATED_JOULES, FIRST
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.device.energy import EnergyMeter
from sparsyedge.edge.device.evaluation import EvaluationDesk
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.device.meter_chain import MeterChain
from sparsyedge.edge.device.model_keeper import ModelKeeper
from sparsyedge.edge.device.optimizer_memory import OptimizerMemory
from sparsyedge.edge.device.outbox import Outbox
from sparsyedge.edge.device.task_inputs import DecodedModel
from sparsyedge.edge.protocol.messages import Offer, RoundTask
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.training.session_holder import SessionHolder

__all__ = ["DeviceFiles", "Equipment", "LocalData", "Power", "Signing"]


class DeviceFiles:
    """The files under a device's folder."""

    def __init__(self, folder: Path, *, keeps_jobs: bool = True) -> None:
        """With `keeps_jobs`, an interrupted job continues after a restart."""
        self.cache = Cache(folder)
        self.outbox = Outbox(folder / "outbox")
        self.optimizer = OptimizerMemory(folder / "optimizer")
        self.downloads = folder / "downloads"
        self.job_path = folder / "job.checkpoint" if keeps_jobs else None


class Power:
    """The meter, and what the device draws when idle."""

    def __init__(self, meter: EnergyMeter, idle_w: float | None = None) -> None:
        """`idle_w` is what `meter` measured."""
        self.meter = meter
        self._idle_w, self._idle_by = idle_w, meter.name

    @property
    def idle_w(self) -> float | None:
        """Idle watts; None if nobody measured them with the meter that counts now."""
        return self._idle_w if self.meter.name == self._idle_by else None

    def begin_round(self, task: RoundTask) -> None:
        """Let the best meter that answers count this round."""
        if isinstance(self.meter, MeterChain):
            speaks = FIRST if task.speaks is UNSET else task.speaks
            self.meter.begin_round(tells_calibrated=CALIBRATED_JOULES in speaks.features)


@dataclass(frozen=True)
class Signing:
    """The keys of a secured fleet; a fleet without an authority has none."""

    keys: PinnedKeys | None = None
    """The device trains only artifacts signed with one of these."""
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
    desk: EvaluationDesk = field(default_factory=EvaluationDesk)
    """Evaluates models; simulated devices share one."""
    models: ModelKeeper | None = None
    """Keeps a model for predictions; simulated devices have none."""
    decoded: DecodedModel | None = None
    """Shared by simulated devices; a real one needs the memory for its training."""
