"""What a run leaves behind, as plain values: for `status`, for tables and for reports."""

from __future__ import annotations

from dataclasses import dataclass

from sparsyedge.coordinator.aggregation.influence import NOTABLE
from sparsyedge.edge.device.energy import meter_text
from sparsyedge.edge.phase_costs import PhaseCost

__all__ = [
    "AdjustmentRecord",
    "DeviceRecord",
    "Evaluation",
    "MemberRecord",
    "PhaseRecord",
    "RefusalRecord",
    "RoundRecord",
    "RunRecord",
    "RunSummary",
    "Stretch",
]


@dataclass(frozen=True)
class Evaluation:
    """The share of test samples that were classified right, and the mean loss over them."""

    accuracy: float
    loss: float
    by_class: tuple[float, ...] = ()
    """The accuracy on the samples of each class; NaN for a class without any."""
    by_device: tuple[float, ...] = ()
    """Where the devices' label mixes are known: the accuracy on data mixed like each device's own."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rounds that were planned together: all of a run, or those from where its `rounds` were changed."""

    first_round: int
    rounds: int
    """Of the whole run, as planned from here on."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run; times are Unix seconds."""

    name: str
    fleet: str
    state: str
    """`running`, `paused`, `finished`, `stopped` or `failed`."""
    reason: str
    rounds: int
    created_at: float
    seen_at: float
    """When the coordinator last said that it is alive; old while `running` means that it was killed."""
    pid: int
    dense_bytes: int
    model_id: str
    model_sha256: str | None
    """Of model.onnx, once it is delivered."""
    began_from: str = ""
    """Whose model round 1 started from; empty for the checkpoint among the artifacts."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One closed round; bytes are summed over the devices whose updates were accepted."""

    round: int
    test_accuracy: float | None
    test_loss: float | None
    global_sparsity: float
    """The share of prunable weights of the averaged model that are zero."""
    bytes_down: int
    bytes_up: int
    nonzeros_down: int
    """Values of the round's model, once for each of these devices; what bytes are spent on."""
    nonzeros_up: int
    """Values of their updates."""
    dense_bytes: int
    """One model as plain float32: what one device would move each way."""
    updates: int
    refused: int
    seconds: float
    """From the announcement to the record, aggregation and evaluation included."""
    learning_rate: float
    model_id: str


@dataclass(frozen=True, kw_only=True)
class DeviceRecord:
    """One device over all rounds in which its update was accepted."""

    id: str
    pid: int
    phases: dict[str, PhaseCost]
    energy_source: str
    energy_kind: str
    energy_hz: float
    idle_w: float | None
    rounds: int
    steps: int
    last_loss: float
    peak_rss_mb: float
    bytes_down: int
    bytes_up: int
    online: bool

    @property
    def meter(self) -> str:
        """Where its joules come from."""
        return meter_text(self.energy_source, self.energy_kind, hz=self.energy_hz, idle_w=self.idle_w)


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    """What one phase of one round cost one device."""

    round: int
    device: str
    phase: str
    seconds: float
    joules: float | None
    kind: str
    """How the joules were measured."""


@dataclass(frozen=True, kw_only=True)
class RefusalRecord:
    """Something that was not taken from a device, and how often."""

    round: int
    device: str
    kind: str
    reason: str
    """What was wrong with the last one of them."""
    count: int


@dataclass(frozen=True, kw_only=True)
class AdjustmentRecord:
    """An accepted update that counted for less than its device would have it; no refusal, the device is not told."""

    round: int
    device: str
    samples: int
    """As claimed."""
    weight: int
    cut: bool
    """Whether the weight is less because the claim was not believed."""
    clipped: float
    """What was left of the norm of its change: 1 where all was, 0 where the rule did without the update."""

    @property
    def notable(self) -> bool:
        """Whether it is more than what happens to honest devices all the time."""
        return self.cut or self.clipped < NOTABLE

    def __str__(self) -> str:
        notes = [f"clipped to {self.clipped:.2g} of its norm" if self.clipped else "left out"] * (self.clipped < 1)
        notes += [f"claims {self.samples} samples, counted for {self.weight}"] if self.cut else []
        return "; ".join(notes)


@dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """Who has ever been heard of in a run: a device that came, delivered, or had something refused."""

    device: str
    online: bool
    seen_at: float | None
    """When it last came or went, delivered or was refused, in Unix seconds."""
    quarantined_until: int
    """The round that it may take part in again; 0 where it is not left out."""
    quarantine: str
    """Why it is left out."""
    last_round: int | None
    """The last round that it delivered an update for."""
    updates: int
    seconds: float
    """Of all phases of all rounds."""
    bytes_down: int
    bytes_up: int
    joules: float | None
    energy_kind: str
    refusals: tuple[RefusalRecord, ...]
    adjustments: tuple[AdjustmentRecord, ...] = ()
    unfit: str = ""
    """Why it does not train although it is online, in its own words; empty where it may."""
    alarm: str = ""
    """What else is wrong about it: two devices with its identity, tasks that somebody forged."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Everything that is known about a run."""

    run: RunRecord
    run_dir: str
    rounds: tuple[RoundRecord, ...]
    devices: tuple[DeviceRecord, ...]
    refusals: tuple[RefusalRecord, ...]
    stretches: tuple[Stretch, ...] = ()
