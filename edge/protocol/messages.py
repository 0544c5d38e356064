"""The messages between coordinator and devices: topics and control messages. No I/O.

Control messages are JSON: anyone can watch a run with any MQTT client. Models and updates travel as chunks of raw
bytes, addressed by the SHA-256 of the whole. docs/reference/protocol.md walks through one round.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.compatibility import FIRST, Features, Speaks, VersionNumber, read_demand, require_understood
from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import FrameError, VersionError
from sparsyedge.edge.phase_costs import Kind, PhaseCost
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.store_url import MAX_URL
from sparsyedge.edge.text import MAX_TEXT
from sparsyedge.edge.wire.codecs import LOSSLESS, Codec

__all__ = [
    "CHUNK_BYTES",
    "MAX_BLOB_BYTES",
    "MAX_CLASSES",
    "MAX_EPOCHS",
    "MAX_HOLDOUT",
    "MAX_LOSS",
    "MAX_RANGES",
    "MIN_CHUNK_BYTES",
    "Accepted",
    "Blob",
    "Catalogue",
    "DataNote",
    "Delta",
    "DeviceStatus",
    "Grant",
    "HeldModel",
    "Lease",
    "Level",
    "LocalEvaluation",
    "Offer",
    "Progress",
    "Quality",
    "Refused",
    "Reply",
    "Report",
    "RoundTask",
    "RunCertificate",
    "Score",
    "UpgradeStatus",
    "Wait",
    "decode",
    "decode_reply",
    "encode",
]

CHUNK_BYTES = 96 * 1024
"""Fits the smallest packet limit among common brokers (128 KB), with room for the topic."""
MIN_CHUNK_BYTES = 1024
MAX_CHUNK_BYTES = 1024 * 1024
MAX_BLOB_BYTES = 1 << 30
MAX_COHORT = 100_000
MAX_WAIT_S = 3600.0
MAX_DELTAS = 8
MAX_LEVELS = 16
MAX_BLOBS = 64
"""A run has about a dozen on the broker at a time."""
MAX_RANGES = 1000
"""Missing chunks in one grant; the next grant asks for the rest."""
MAX_EPOCHS = 10_000
"""The limit for one local job in any fleet; a signed manifest may allow fewer."""
MAX_HOLDOUT = 0.5
MAX_LOSS = 1e30
"""A larger loss says no more than that the model is useless; it also keeps infinity out."""
MAX_CLASSES = 1000
"""No status tells more; one with more than 16 KiB is thrown away."""
MAX_COUNT = 10**9
"""No device has more samples."""

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Ed25519Signature = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{128})?\Z")]
"""In hex; empty in a fleet without an authority."""
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
RoundNumber = Annotated[int, msgspec.Meta(ge=1)]
TrainedRounds = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Shown = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
"""A figure for people to read."""
ShownCount = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
SampleCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Hundredths = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A control message.

    Readers ignore undeclared fields: a later version may have sent them. A field that a reader must not ignore comes
    with a feature in `needs`. New fields are optional, with UNSET as their default. docs/reference/protocol.md has
    the whole rule.
    """


class Blob(Message, frozen=True):
    """A byte string, identified by its hash and fetched in chunks, or from a web server."""

    sha256: Sha256
    bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOB_BYTES)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = CHUNK_BYTES

    @property
    def chunks(self) -> int:
        """The number of chunks; an empty blob is one empty chunk."""
        return max(1, -(-self.bytes // self.chunk_bytes))


class Delta(Message, frozen=True):
    """A model as a difference to an earlier one, for devices that hold that one."""

    base: Sha256
    model: Blob


class Level(Message, frozen=True):
    """A model pruned for the devices of one target."""

    sparsity: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    model_id: Sha256
    model: Blob


class Quality(Message, frozen=True):
    """How good a global model is, as the coordinator has recorded it; a figure that it has not measured is None."""

    sparsity: Share
    """The share of prunable weights that are zero."""
    accuracy: Share | None = None
    """On the run's test samples; None for a regression."""
    rmse: NonNegative | None = None
    r_squared: Annotated[float, msgspec.Meta(le=1)] | None = None


class HeldModel(Message, frozen=True):
    """The model that a device has in place for predictions."""

    run: Identifier
    round: TrainedRounds
    """The last round that went into it."""
    model_id: Sha256
    predict_ms: Annotated[float, msgspec.Meta(ge=0, le=1e7)] | None = None
    """How long the device takes for one sample; None if it has not measured that."""


class RunCertificate(Message, frozen=True):
    """The operator's permission for a key to lead a run of a fleet."""

    fleet: Identifier
    run: Identifier
    serial: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    """Grows with every certificate of a fleet. A device refuses tasks under certificates older than one it has seen."""
    key: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The run's Ed25519 public key, in hex."""
    signature: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]
    """Over the fields above, by the key that devices pin."""


class RoundTask(Message, frozen=True):
    """The fleet's current task, retained by the coordinator. A device that joins late or restarts reads it first."""

    run: Identifier
    round: RoundNumber
    rounds: RoundNumber
    state: Literal["open", "closed", "finished"]
    cohort: Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=MAX_COHORT)]
    manifest: Blob
    model_id: Sha256
    model: Blob
    learning_rate: Annotated[float, msgspec.Meta(gt=0)]
    epochs: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCHS)]
    batch_size: Annotated[int, msgspec.Meta(ge=1)]
    sparsity: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    seed: int
    deadline_unix_s: float
    codec: Codec = LOSSLESS
    """How the values of updates travel; `codec_for` gives the codec without a base."""
    deltas: Annotated[tuple[Delta, ...], msgspec.Meta(max_length=MAX_DELTAS)] = ()
    """The model again, for devices that hold an earlier one; the latest base first."""
    protocol: VersionNumber = FIRST.protocol.newest
    """The protocol version that readers must speak and devices answer in."""
    needs: Features | UnsetType = UNSET
    """The features that a reader must have; a reader without one of them refuses the task."""
    speaks: Speaks | UnsetType = UNSET
    """What the coordinator reads."""
    software: Text = ""
    """The coordinator's software, for people to read."""
    blobs: Annotated[str, msgspec.Meta(max_length=MAX_URL)] | UnsetType = UNSET
    """A folder on a web server that has this task's blobs too, each under its SHA-256.

    The broker has them as well, unless `needs` has the feature `http-blobs`. Devices check the URL only when they use
    it: a scheme that a later version adds must not make a task unreadable.
    """
    evaluate: bool | UnsetType = UNSET
    """Whether devices with data to evaluate on do so in this round, before and after training."""
    holdout: Annotated[float, msgspec.Meta(gt=0, le=MAX_HOLDOUT)] | UnsetType = UNSET
    """The share of samples that a device without a test part evaluates on and does not train on.

    Comes with the feature `device-evaluation` in `needs`.
    """
    evaluation: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | UnsetType = UNSET
    """The number of an evaluation round: devices evaluate the model and report, and nobody trains.

    `round` is then the last closed one. Comes with the feature `device-evaluation` in `needs`.
    """
    model_round: TrainedRounds | UnsetType = UNSET
    """The last round that went into `model`, 0 if none; devices keep a model for predictions only where it is set.

    An open round names the model that it starts from, a finished run the one that it ended with.
    """
    quality: Quality | UnsetType = UNSET
    """How good `model` is."""
    levels: Annotated[tuple[Level, ...], msgspec.Meta(max_length=MAX_LEVELS)] | UnsetType = UNSET
    """The model in the sizes of groups with targets of their own, which download theirs instead."""
    signature: Ed25519Signature = ""
    """The operator's signature of the manifest; devices of a secured fleet accept no other."""
    certificate: RunCertificate | None = None
    """Certifies the run key behind `proof`, in a secured fleet."""
    proof: Ed25519Signature = ""
    """The run key's signature of everything before it. No field may follow: see security/run_seal.py."""


class Catalogue(Message, frozen=True):
    """The coordinator's published blobs, retained. Its successor uses the list to withdraw them."""

    blobs: Annotated[tuple[Blob, ...], msgspec.Meta(max_length=MAX_BLOBS)]


class Lease(Message, frozen=True):
    """Retained by the coordinator that leads the fleet, with an empty last will; `asked` is never retained."""

    state: Literal["held", "asked"]
    holder: str
    """New each time a coordinator starts."""
    run: Identifier
    place: str
    """Host and run directory."""
    since_unix_s: float
    answers: str = ""
    """The holder's answer to another coordinator's question."""


class UpgradeStatus(Message, frozen=True):
    """How far a device is with the release that it was told to install; docs/reference/protocol.md names the stages."""

    stage: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z-]{0,19}\Z")]
    """Readers take a stage that they do not know for one on the way."""
    order: Count = 0
    """The serial of the order that this answers; 0 if there was none."""
    bundle: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """The bundle of that order."""
    running: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """The bundle in use; empty if it is what the device was set up with."""
    reason: Text = ""
    """Why it was refused or given back."""
    alarm: Text = ""
    """Releases and orders that are not the operator's, since the device's start; empty if there were none."""


class Follows(Message, frozen=True):
    """A device's word that it trusts the authority that replaces the present one, and has its certificate."""

    number: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    """Of the statement that it follows (edge/security/succession.py)."""
    serial: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,40}\Z")]
    """The number of its certificate, in hex."""
    signature: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){8,80}\Z")]
    """With the key of that certificate, in hex: nobody else can say so in the device's name."""


class DeviceStatus(Message, frozen=True):
    """A device's retained status, with `offline` as its last will."""

    state: Literal["online", "offline"]
    boot_id: Text
    """New at every start: a will from an earlier start does not count as a present absence."""
    samples: Count = 0
    software: Text = ""
    unfit: Text = ""
    """Why the device does not train; empty if it does. With `offline`, why it could not even start."""
    unfit_round: Count = 0
    """The one round that `unfit` applies to; 0 if it applies until the device says otherwise."""
    alarm: Text = ""
    """An attack the device has noticed since its start, such as forged tasks; empty if none."""
    speaks: Speaks | UnsetType = UNSET
    """What the device reads; compatibility.FIRST if it does not say."""
    settings: DeviceSettings | UnsetType = UNSET
    """The device's machine and its owner's limits, for people to read."""
    holds: HeldModel | UnsetType = UNSET
    """The model that the device predicts with, if it has one."""
    upgrade: UpgradeStatus | UnsetType = UNSET
    """The device's upgrade; UNSET if it cannot be upgraded over the air."""
    classes: Annotated[tuple[Hundredths, ...], msgspec.Meta(max_length=MAX_CLASSES)] | UnsetType = UNSET
    """The share of each of the model's classes among the samples that the device trains on, rounded up.

    Only for a run whose task needs the feature `class-shares`.
    """
    follows: Follows | UnsetType = UNSET
    """Only while the fleet's authority is replaced, and once the device is ready for that."""


class Score(Message, frozen=True):
    """How a model did on samples of a device; a regression has no accuracy, and its RMSE is the root of its loss."""

    loss: Annotated[float, msgspec.Meta(ge=0, le=MAX_LOSS)]
    accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)] | UnsetType = UNSET


class LocalEvaluation(Message, frozen=True):
    """What a device found when it evaluated on samples that it does not train on."""

    samples: SampleCount
    """0 if it has none; then there are no scores."""
    held_out: bool = False
    """Whether they are a held-out share of its data; else they are its test part."""
    before: Score | UnsetType = UNSET
    """Of the task's model, as the device begins with it. Missing if it was not finite."""
    after: Score | UnsetType = UNSET
    """Of the update that the device sends: its own, personalised model."""


class DataNote(Message, frozen=True):
    """How a device's data has changed since its last report, and what it cannot use."""

    added: SampleCount = 0
    changed: SampleCount = 0
    removed: SampleCount = 0
    broken: SampleCount = 0
    """Samples that it cannot read now, not only new ones."""
    trouble: Text = ""
    """What is wrong with the first of them, or why the data as a whole stays as it was; with its name."""


class Report(Message, frozen=True):
    """The cost of one round on a device; sent with the offer, and again with the upload's own cost after acceptance."""

    run: Identifier
    round: RoundNumber
    phases: dict[str, PhaseCost]
    energy_source: Text
    energy_kind: Kind
    bytes_down: Count
    bytes_up: Count
    steps: Count
    loss: float
    peak_rss_mb: float
    pid: int
    energy_hz: NonNegative = 0.0
    """How often power was sampled; 0 if the meter counts energy itself."""
    idle_w: NonNegative | None = None
    """The device's idle power, measured at its start; the joules of the phases include it."""
    regrown: Count | None = None
    """Prunable weights that were zero in the round's model but not after training; counted before pruning."""
    evaluated: LocalEvaluation | UnsetType = UNSET
    """What the device's own evaluation found, if the task asked for one."""
    evaluation: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | UnsetType = UNSET
    """The evaluation round that this answers; a report on a training round has none."""
    data: DataNote | UnsetType = UNSET
    """How the device's data has changed."""
    loss_rms: Annotated[float, msgspec.Meta(ge=0)] | UnsetType = UNSET
    """The root mean square over the steps whose mean is `loss`; older devices leave it out."""


class Progress(Message, frozen=True):
    """What a device is doing in a round, retained while it works; an empty message says that the job is over.

    It only informs: nothing that is trained or averaged depends on it, and it may be lost.
    """

    run: Identifier
    round: RoundNumber
    phase: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z-]{0,19}\Z")]
    """One of phase_costs.Phase; a later version may have others."""
    step: ShownCount = 0
    """Training steps done, over all epochs of the job."""
    steps: ShownCount = 0
    """All steps of the job; 0 while they are not known."""
    loss: Shown | UnsetType = UNSET
    """Mean of the last steps."""
    temperature_c: Shown | UnsetType = UNSET
    battery_percent: Shown | UnsetType = UNSET


class Offer(Message, frozen=True):
    """A device offers its update for the round. It repeats the offer until answered, always with the same hash."""

    run: Identifier
    round: RoundNumber
    base: Sha256
    """The id of the model that training started from."""
    update: Blob
    samples: Annotated[int, msgspec.Meta(ge=1)]
    report: Report
    signature: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{16,144})?\Z")] = ""
    """By the key of the device's certificate (ECDSA over P-256, DER in hex); empty in a fleet without an authority."""


class Grant(Message, frozen=True, tag="grant"):
    """Send these chunks, as half-open ranges; all others have arrived."""

    run: Identifier
    round: RoundNumber
    update: Sha256
    missing: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=MAX_RANGES)]


class Accepted(Message, frozen=True, tag="accepted"):
    """The coordinator has stored the update durably; the device may delete it."""

    run: Identifier
    round: RoundNumber
    update: Sha256


class Refused(Message, frozen=True, tag="refused"):
    """The coordinator refuses the update and says why; the device drops it."""

    run: Identifier
    round: RoundNumber
    update: Sha256
    reason: Text


class Wait(Message, frozen=True, tag="wait"):
    """Others upload first; the reason says why. The device asks again later."""

    run: Identifier
    round: RoundNumber
    update: Sha256
    reason: Text
    again_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | UnsetType = UNSET
    """The device is in the queue and is called: it need not ask again for about as long. Unset: it is to blame."""


Reply = Grant | Accepted | Refused | Wait

# Made when this file is imported: msgspec may crash where several threads at once are the first to decode a type, as
# the agents of one simulating process would be.
_REPLY_DECODER: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_DECODERS: dict[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (RoundTask, Catalogue, Lease, DeviceStatus, Progress, Report, Offer)
}


Decoded = TypeVar("Decoded", bound=Message)
T = TypeVar("T")


def encode(message: Message) -> bytes:
    """A control message as JSON."""
    return msgspec.json.encode(message)


def decode(payload: bytes, kind: type[Decoded]) -> Decoded:
    """Read a control message; raises FrameError that says what is wrong.

    A VersionError also says which side to upgrade.
    """
    decoder: msgspec.json.Decoder[Decoded] = _DECODERS.get(kind) or msgspec.json.Decoder(kind)
    return _decode(payload, decoder, kind.__name__)


def decode_reply(payload: bytes) -> Reply:
    """Read the coordinator's answer to an offer."""
    return _decode(payload, _REPLY_DECODER, "reply")


def _decode(payload: bytes, decoder: msgspec.json.Decoder[T], kind: str) -> T:
    try:
        # Check the demand first: it explains why the rest may be unreadable.
        require_understood(read_demand(payload))
        return decoder.decode(payload)
    except VersionError:
        raise
    # Invalid UTF-8 and very deep nesting raise their own errors.
    except (FrameError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a valid {kind}: {error}") from error
