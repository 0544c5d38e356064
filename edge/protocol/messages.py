"""What coordinator and devices say to each other: topics and control messages. No I/O.

Control messages are JSON, so that a person can watch a run with any MQTT client; models and updates travel as chunks of
raw bytes, addressed by the SHA-256 of the whole. docs/reference/protocol.md walks through one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.compatibility import FIRST, Features, Speaks, VersionNumber, read_demand, require_understood
from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import FrameError, VersionError
from sparsyedge.edge.phase_costs import Kind, PhaseCost
from sparsyedge.edge.text import MAX_TEXT
from sparsyedge.edge.wire.codecs import LOSSLESS, Codec

__all__ = [
    "CHUNK_BYTES",
    "MAX_BLOB_BYTES",
    "MAX_EPOCHS",
    "MAX_RANGES",
    "MIN_CHUNK_BYTES",
    "Accepted",
    "Blob",
    "Catalogue",
    "Delta",
    "DeviceStatus",
    "Grant",
    "Lease",
    "Offer",
    "Refused",
    "Reply",
    "Report",
    "RoundTask",
    "RunCertificate",
    "Topics",
    "Wait",
    "decode",
    "decode_reply",
    "encode",
]

TOPIC_TREE = "v1"
"""Where both sides meet, whatever protocol they speak: it changes only if the announcements themselves must."""
CHUNK_BYTES = 96 * 1024
"""Fits the smallest packet cap among common brokers (128 KB) with room for the topic."""
MIN_CHUNK_BYTES = 1024
MAX_CHUNK_BYTES = 1024 * 1024
MAX_BLOB_BYTES = 1 << 30
MAX_COHORT = 100_000
MAX_DELTAS = 8
MAX_BLOBS = 64
"""A run has a dozen on the broker at a time."""
MAX_RANGES = 1000
"""Of missing chunks in one grant: what is left out is asked for by the next one."""
MAX_EPOCHS = 10_000
"""Of one local job, in any fleet; a signed manifest may allow fewer."""

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Ed25519Signature = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{128})?\Z")]
"""In hex; empty in a fleet without an authority."""
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
RoundNumber = Annotated[int, msgspec.Meta(ge=1)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A control message.

    A field that it does not declare is ignored: a later version may have sent it. One that must not be ignored comes
    with a feature in `needs`. New fields are optional, with UNSET as their default. docs/reference/protocol.md has
    the whole rule.
    """


class Blob(Message, frozen=True):
    """A byte string that is fetched in chunks and known by its hash."""

    sha256: Sha256
    bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOB_BYTES)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = CHUNK_BYTES

    @property
    def chunks(self) -> int:
        """How many chunks it is cut into; an empty blob is one empty chunk."""
        return max(1, -(-self.bytes // self.chunk_bytes))


class Delta(Message, frozen=True):
    """A model as a difference to another, for devices that hold that other one."""

    base: Sha256
    model: Blob


class RunCertificate(Message, frozen=True):
    """The operator's word that a key may lead a run of a fleet."""

    fleet: Identifier
    run: Identifier
    serial: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    """Grows with every certificate of a fleet: a device that has seen one takes no task under an earlier one."""
    key: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The run's Ed25519 public key, in hex."""
    signature: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]
    """Over the fields above, by the key that devices pin."""


class RoundTask(Message, frozen=True):
    """Retained by the coordinator: what the fleet does now. A device that joins late or restarts reads it first."""

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
    """How the values of updates travel; `codec_for` says how they travel without a base."""
    deltas: Annotated[tuple[Delta, ...], msgspec.Meta(max_length=MAX_DELTAS)] = ()
    """The model once more for devices that hold an earlier one, the latest of those first."""
    protocol: VersionNumber = FIRST.protocol.newest
    """The version that a reader of this message must speak, and in which devices answer."""
    needs: Features | UnsetType = UNSET
    """The features that a reader must have: one that lacks any of them refuses the task."""
    speaks: Speaks | UnsetType = UNSET
    """What the coordinator reads."""
    software: Text = ""
    """The coordinator's, for people."""
    signature: Ed25519Signature = ""
    """The operator's signature of the manifest; devices of a secured fleet take no other."""
    certificate: RunCertificate | None = None
    """Whose word the task is, in a secured fleet."""
    proof: Ed25519Signature = ""
    """The run key's signature of the message up to here, so no field may follow: see security/run_seal.py."""


class Catalogue(Message, frozen=True):
    """Retained by the coordinator: the blobs whose chunks it has published, so that its successor can withdraw them."""

    blobs: Annotated[tuple[Blob, ...], msgspec.Meta(max_length=MAX_BLOBS)]


class Lease(Message, frozen=True):
    """Retained by the coordinator that leads the fleet, with nothing as its last will; `asked` is never retained."""

    state: Literal["held", "asked"]
    holder: str
    """New at every start of a coordinator."""
    run: Identifier
    place: str
    """Host and run directory."""
    since_unix_s: float
    answers: str = ""
    """The holder's answer to whoever asked."""


class DeviceStatus(Message, frozen=True):
    """Retained by each device, with `offline` as its last will."""

    state: Literal["online", "offline"]
    boot_id: Text
    """New at every start, so that an old will is not taken for a present absence."""
    samples: Count = 0
    software: Text = ""
    unfit: Text = ""
    """Why the device does not train; empty where it does. With `offline`, why it could not even start."""
    unfit_round: Count = 0
    """The one round that `unfit` is about; 0 where it holds until the device says otherwise."""
    alarm: Text = ""
    """What somebody tries on the device, such as forged tasks; empty where nothing was noticed since its start."""
    speaks: Speaks | UnsetType = UNSET
    """What the device reads; compatibility.FIRST where it does not say."""


class Report(Message, frozen=True):
    """What one round cost a device; sent with the offer, and again with the upload's own cost once it is accepted."""

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
    """How often power was read; 0 where the meter counts energy itself."""
    idle_w: NonNegative | None = None
    """What the device draws without work, measured at its start; the phases' joules contain it."""
    regrown: Count | None = None
    """Prunable weights that were zero in the round's model and not after training, before the update was pruned."""


class Offer(Message, frozen=True):
    """A device has an update for the round and asks to send it; repeated until answered, always with the same hash."""

    run: Identifier
    round: RoundNumber
    base: Sha256
    """The model id that training started from."""
    update: Blob
    samples: Annotated[int, msgspec.Meta(ge=1)]
    report: Report
    signature: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{16,144})?\Z")] = ""
    """By the key of the device's certificate (ECDSA over P-256, DER in hex); empty in a fleet without an authority."""


class Grant(Message, frozen=True, tag="grant"):
    """Send these chunks, as half-open ranges; everything else has arrived."""

    run: Identifier
    round: RoundNumber
    update: Sha256
    missing: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=MAX_RANGES)]


class Accepted(Message, frozen=True, tag="accepted"):
    """The update is recorded durably; the device may forget it."""

    run: Identifier
    round: RoundNumber
    update: Sha256


class Refused(Message, frozen=True, tag="refused"):
    """The update will not be taken, and why; the device drops it."""

    run: Identifier
    round: RoundNumber
    update: Sha256
    reason: Text


class Wait(Message, frozen=True, tag="wait"):
    """Others upload first, and why; the device asks again later."""

    run: Identifier
    round: RoundNumber
    update: Sha256
    reason: Text


Reply = Grant | Accepted | Refused | Wait

# Made when this file is imported: msgspec may crash where several threads at once are the first to decode a type, as
# the agents of one simulating process would be.
_REPLY_DECODER: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_DECODERS: dict[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (RoundTask, Catalogue, Lease, DeviceStatus, Report, Offer)
}


@dataclass(frozen=True)
class Topics:
    """The topic tree of one fleet; no topic has more than seven slashes, which is what cloud brokers allow."""

    fleet: str

    @property
    def root(self) -> str:
        return f"se/{TOPIC_TREE}/{self.fleet}"

    @property
    def round(self) -> str:
        """Coordinator to all, retained: the RoundTask."""
        return f"{self.root}/round"

    @property
    def lease(self) -> str:
        """Coordinators among themselves, retained, with a last will: the Lease."""
        return f"{self.root}/lease"

    @property
    def catalogue(self) -> str:
        """Coordinators among themselves, retained: the Catalogue."""
        return f"{self.root}/blobs"

    def chunk(self, blob: str, index: int | Literal["+"]) -> str:
        """Coordinator to all, retained: one chunk of a model or of an artifact file."""
        return f"{self.root}/blob/{blob}/{index}"

    def status(self, device: str) -> str:
        """Device to coordinator, retained, with a last will: the DeviceStatus."""
        return f"{self.root}/dev/{device}/status"

    def offer(self, device: str) -> str:
        """Device to coordinator: an Offer."""
        return f"{self.root}/dev/{device}/offer"

    def report(self, device: str) -> str:
        """Device to coordinator: a Report."""
        return f"{self.root}/dev/{device}/report"

    def reply(self, device: str) -> str:
        """Coordinator to one device: a Grant, Accepted, Refused or Wait."""
        return f"{self.root}/dev/{device}/reply"

    def upload(self, device: str, blob: str, index: int | Literal["+"]) -> str:
        """Device to coordinator: one chunk of an update."""
        return f"{self.root}/dev/{device}/up/{blob}/{index}"

    def enrol_request(self, device: str) -> str:
        """Newcomer to coordinator: an EnrolRequest."""
        return f"{self.root}/enrol/req/{device}"

    def enrol_reply(self, connection: str) -> str:
        """Coordinator to one newcomer, known by the client id of its connection: an EnrolReply."""
        return f"{self.root}/enrol/reply/{connection}"

    def parse(self, topic: str) -> tuple[str, ...]:
        """The levels of a topic below the fleet's root, e.g. ("dev", "pi-07", "offer"); empty for a foreign topic."""
        prefix = f"{self.root}/"
        return tuple(topic[len(prefix) :].split("/")) if topic.startswith(prefix) else ()


Decoded = TypeVar("Decoded", bound=Message)
T = TypeVar("T")


def encode(message: Message) -> bytes:
    """A control message as JSON."""
    return msgspec.json.encode(message)


def decode(payload: bytes, kind: type[Decoded]) -> Decoded:
    """Read a control message; raises FrameError that says what does not fit.

    A VersionError is one that says which side to upgrade.
    """
    decoder: msgspec.json.Decoder[Decoded] = _DECODERS.get(kind) or msgspec.json.Decoder(kind)
    return _decode(payload, decoder, kind.__name__)


def decode_reply(payload: bytes) -> Reply:
    """Read what the coordinator answered to an offer."""
    return _decode(payload, _REPLY_DECODER, "reply")


def _decode(payload: bytes, decoder: msgspec.json.Decoder[T], kind: str) -> T:
    try:
        # What a message needs comes first: it explains why the rest may be unreadable.
        require_understood(read_demand(payload))
        return decoder.decode(payload)
    except VersionError:
        raise
    # Text that is not UTF-8 and nesting that exhausts the stack raise errors of their own.
    except (FrameError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a valid {kind}: {error}") from error
