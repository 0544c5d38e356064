"""The messages between coordinator and devices: topics and control messages. No I/O.

Control messages are JSON: anyone can watch a run with any MQTT client. Models and updates travel as chunks of raw
bytes, addressed by the SHA-256 of the whole. docs/reference/protocol.md walks through one round.
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
from sparsyedge.edge.protocol.store_url import MAX_URL
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
"""The root of all topics, for every protocol version. It changes only if the announcements themselves must."""
CHUNK_BYTES = 96 * 1024
"""Fits the smallest packet limit among common brokers (128 KB), with room for the topic."""
MIN_CHUNK_BYTES = 1024
MAX_CHUNK_BYTES = 1024 * 1024
MAX_BLOB_BYTES = 1 << 30
MAX_COHORT = 100_000
MAX_DELTAS = 8
MAX_BLOBS = 64
"""A run has about a dozen on the broker at a time."""
MAX_RANGES = 1000
"""Missing chunks in one grant; the next grant asks for the rest."""
MAX_EPOCHS = 10_000
"""The limit for one local job in any fleet; a signed manifest may allow fewer."""

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Ed25519Signature = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{128})?\Z")]
"""In hex; empty in a fleet without an authority."""
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
RoundNumber = Annotated[int, msgspec.Meta(ge=1)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


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


Reply = Grant | Accepted | Refused | Wait

# Made when this file is imported: msgspec may crash where several threads at once are the first to decode a type, as
# the agents of one simulating process would be.
_REPLY_DECODER: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_DECODERS: dict[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (RoundTask, Catalogue, Lease, DeviceStatus, Report, Offer)
}


@dataclass(frozen=True)
class Topics:
    """The topic tree of one fleet. No topic has more than seven slashes: cloud brokers allow no more."""

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
        """Between coordinators, retained, with a last will: the Lease."""
        return f"{self.root}/lease"

    @property
    def catalogue(self) -> str:
        """Between coordinators, retained: the Catalogue."""
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
        """Coordinator to one newcomer, addressed by its connection's client id: an EnrolReply."""
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
