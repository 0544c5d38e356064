"""A run's record as plain values, for `status`, tables and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsyedge.coordinator.aggregation.influence import NOTABLE
from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation, EvaluationRound
from sparsyedge.edge.device.energy import meter_text
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.device_settings import DeviceSettings

__all__ = [
    "AdjustmentRecord",
    "DataRecord",
    "DeviceRecord",
    "Evaluation",
    "KeptUpdate",
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
    """Accuracy and mean loss on the test samples; a regression has errors instead of an accuracy."""

    accuracy: float | None
    """None for a regression."""
    loss: float
    """Cross-entropy; in a regression, the mean squared error."""
    by_class: tuple[float, ...] = ()
    """Accuracy on each class; NaN for a class without samples."""
    by_device: tuple[float, ...] = ()
    """Accuracy on data with each device's own label mix; empty if the mixes are unknown."""
    rmse: float | None = None
    """The root mean squared error of a regression; None for classes."""
    r_squared: float | None = None
    """The share of the test targets' variance that a regression explains; None also if they do not vary."""


@dataclass(frozen=True)
class KeptUpdate:
    """An accepted update of the open round; its frame is in the round's file of updates."""

    samples: int
    sha256: str
    bytes: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rounds planned together: the whole run, or the part since its `rounds` changed."""

    first_round: int
    rounds: int
    """The planned length of the whole run, from this round on."""


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
    """The coordinator's last sign of life. If it is old and the state is `running`, the coordinator was killed."""
    pid: int
    dense_bytes: int
    model_id: str
    model_sha256: str | None
    """The hash of model.onnx, once delivered."""
    began_from: str = ""
    """Whose model round 1 started from; empty for the checkpoint among the artifacts."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One closed round; bytes are summed over the devices whose updates were accepted."""

    round: int
    test_accuracy: float | None
    """None in a round without evaluation, and in a regression."""
    test_loss: float | None
    global_sparsity: float
    """The share of prunable weights of the averaged model that are zero."""
    bytes_down: int
    bytes_up: int
    nonzeros_down: int
    """Values of the round's model, counted once for each of these devices."""
    nonzeros_up: int
    """Values of their updates."""
    dense_bytes: int
    """One model as plain float32: what one device would transfer each way."""
    updates: int
    refused: int
    seconds: float
    """From the announcement to the record, aggregation and evaluation included."""
    learning_rate: float
    model_id: str
    test_rmse: float | None = None
    """The root mean squared error of a regression; None in a round without evaluation, and for classes."""
    test_r_squared: float | None = None
    """The share of the test targets' variance that a regression explains."""

    @property
    def quality(self) -> str:
        """How good the model is, in words: its accuracy, or the errors of a regression."""
        if self.test_rmse is None:
            return "not evaluated" if self.test_accuracy is None else f"accuracy {self.test_accuracy:.2%}"
        explained = "-" if self.test_r_squared is None else f"{self.test_r_squared:.3f}"
        return f"RMSE {self.test_rmse:.4g}, R2 {explained}"


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
    joules_kind: str
    """The least trusted kind of its rounds; the other figures on energy are those of its last report."""
    rounds: int
    steps: int
    last_loss: float
    peak_rss_mb: float
    bytes_down: int
    bytes_up: int
    online: bool

    @property
    def meter(self) -> str:
        """The source of its joules, as text."""
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
    """A kind of message that we refused from a device, and how often."""

    round: int
    device: str
    kind: str
    reason: str
    """What was wrong with the last one."""
    count: int


@dataclass(frozen=True, kw_only=True)
class AdjustmentRecord:
    """An accepted update that counted for less than its device claimed. It is no refusal; we do not tell the device."""

    round: int
    device: str
    samples: int
    """As claimed."""
    weight: int
    cut: bool
    """Whether a bound on claims reduced the weight."""
    clipped: float
    """How much of its change was left: 1 for all of it, 0 if the rule left the update out."""

    @property
    def notable(self) -> bool:
        """Whether it goes beyond what often happens to honest devices."""
        return self.cut or self.clipped < NOTABLE

    def __str__(self) -> str:
        notes = [f"clipped to {self.clipped:.2g} of its norm" if self.clipped else "left out"] * (self.clipped < 1)
        notes += [f"claims {self.samples} samples, counted for {self.weight}"] if self.cut else []
        return "; ".join(notes)


@dataclass(frozen=True, kw_only=True)
class DataRecord:
    """How a device's data had changed when it reported on a round."""

    round: int
    device: str
    samples: int
    """All samples that the device said it has."""
    added: int
    changed: int
    removed: int
    broken: int
    """Samples that it could not read."""
    trouble: str
    """What was wrong with the first of them, or with the data as a whole."""
    at: float

    def __str__(self) -> str:
        counts = {"new": self.added, "changed": self.changed, "removed": self.removed, "broken": self.broken}
        text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return "; ".join(part for part in (text, self.trouble) if part)


@dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """A device that the run has heard of: it came online, delivered, or had something refused."""

    device: str
    online: bool
    seen_at: float | None
    """When it last came or went, delivered or was refused, in Unix seconds."""
    quarantined_until: int
    """The first round it may join again; 0 if it is not in quarantine."""
    quarantine: str
    """Why it is in quarantine."""
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
    """The device's own reason for not training while online; empty if it can train."""
    alarm: str = ""
    """Any other problem: two devices share its identity, or somebody forged tasks."""
    software: str = ""
    """What it ran when it was last online; empty if it has not said."""
    settings: DeviceSettings = field(default_factory=DeviceSettings)
    """What it says of its machine and its owner's limits."""
    samples: int = 0
    """How many samples it says it has."""
    evaluated: DeviceEvaluation | None = None
    """What it found when it last evaluated a model."""
    data: DataRecord | None = None
    """What it last said about changes of its data."""
    model_round: int | None = None
    """The last round that went into the model that it predicts with; None if it has said nothing of one."""
    predict_ms: float | None = None
    """How long it takes for one sample with that model."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run and all its records."""

    run: RunRecord
    run_dir: str
    rounds: tuple[RoundRecord, ...]
    devices: tuple[DeviceRecord, ...]
    refusals: tuple[RefusalRecord, ...]
    stretches: tuple[Stretch, ...] = ()
    on_devices: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """What evaluations on devices came to, by training round and name (device_evaluations.py)."""
    evaluations: tuple[EvaluationRound, ...] = ()
    """Evaluation rounds."""
