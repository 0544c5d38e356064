"""Control messages: each kind, by the first byte, as a device, a coordinator or a newcomer would read it."""

from __future__ import annotations

from typing import Any

import msgspec

from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.messages import (
    Accepted,
    Blob,
    Catalogue,
    DataNote,
    Delta,
    DeviceStatus,
    Follows,
    Grant,
    HeldModel,
    Lease,
    Level,
    LocalEvaluation,
    Message,
    Offer,
    Progress,
    Quality,
    Refused,
    Report,
    RoundTask,
    Score,
    UpgradeStatus,
    Wait,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.protocol.releases import Order, Release, ReleaseFile, Sealed, WheelSet
from sparsyedge.edge.security.enrolment_messages import Enrolled, EnrolRequest, NotEnrolled, RenewalRequest
from sparsyedge.edge.security.succession import SealedSuccession, Succession, TrustedAuthority

SHA = "ab" * 32
BLOB = Blob(sha256=SHA, bytes=200_000)
REPORT = Report(
    run="demo",
    round=3,
    phases={"train": PhaseCost(12.5, 30.0), "upload": PhaseCost(0.5, None)},
    energy_source="rapl",
    energy_kind="measured-board",
    bytes_down=1000,
    bytes_up=2000,
    steps=20,
    loss=0.75,
    peak_rss_mb=180.0,
    pid=4711,
    energy_hz=10.0,
    idle_w=2.5,
    regrown=12,
    evaluated=LocalEvaluation(samples=72, held_out=True, before=Score(loss=1.25, accuracy=0.5), after=Score(loss=0.75)),
    evaluation=7,
    loss_rms=0.875,
    data=DataNote(added=3, changed=1, removed=2, broken=1, trouble="half.ppm ends early"),
)
TASK = RoundTask(
    run="demo",
    round=3,
    rounds=20,
    state="open",
    cohort=("pi-01", "pi-02"),
    manifest=BLOB,
    model_id=SHA,
    model=BLOB,
    learning_rate=0.1,
    epochs=1,
    batch_size=16,
    sparsity=0.95,
    seed=1337,
    deadline_unix_s=1.8e9,
    codec="bf16",
    deltas=(Delta(base=SHA, model=BLOB),),
    needs=(),
    speaks=OURS,
    software="sparsyedge 0.1.0",
    blobs="https://store.example/fleet/demo-1",
    evaluate=True,
    holdout=0.2,
    evaluation=7,
    model_round=2,
    quality=Quality(sparsity=0.95, accuracy=0.81, rmse=0.5, r_squared=0.25),
    levels=(Level(sparsity=0.99, model_id=SHA, model=BLOB),),
    signature="cd" * 64,
)
OFFER = Offer(run="demo", round=3, base=SHA, update=BLOB, samples=300, report=REPORT)
STATUS = DeviceStatus(
    state="online",
    boot_id="0f" * 8,
    samples=300,
    software="0.1.0",
    unfit="too warm: 81 C",
    speaks=OURS,
    settings=DeviceSettings(python="3.11.2", machine="aarch64", threads=4, max_temperature_c=80.0, wifi_only=False),
    holds=HeldModel(run="demo", round=2, model_id=SHA, predict_ms=12.5),
    upgrade=UpgradeStatus(stage="refused", order=7, bundle=SHA, running=SHA, reason="too large", alarm="forged"),
    classes=(0, 100, 1),
    follows=Follows(number=1_794_799_000, serial="5d" * 20, signature="30" * 70),
)
SUCCESSION = Succession(
    fleet="home",
    number=1_794_799_000,
    authorities=tuple(
        TrustedAuthority(ca="-----BEGIN CERTIFICATE-----\n", signing_key=digit * 64) for digit in ("a", "b")
    ),
)
RELEASE = Release(
    fleet="home",
    version=1_794_799_000,
    software="0.4.1",
    issued_unix_s=1.8e9,
    expires_unix_s=1.9e9,
    sets=(
        WheelSet(
            python="3.11",
            machine="aarch64",
            files=(ReleaseFile(name="sparsyedge-0.4.1-py3-none-any.whl", sha256=SHA, bytes=1000),),
            installed_bytes=5000,
        ),
    ),
    blobs="https://store.example/home-release-1f2e3d4c",
)

HONEST: list[Message] = [
    TASK,
    Catalogue(blobs=(BLOB, BLOB)),
    Lease(state="held", holder="0f" * 16, run="demo", place="host:/runs/demo", since_unix_s=1.8e9),
    STATUS,
    REPORT,
    OFFER,
    EnrolRequest(device="pi-01", token="9" * 43, csr="-----BEGIN CERTIFICATE REQUEST-----\n", reply="0f" * 16),
    Progress(run="demo", round=3, phase="train", step=12, steps=20, loss=0.7, temperature_c=61.5, battery_percent=80.0),
    RenewalRequest(device="pi-01", csr="-----BEGIN CERTIFICATE REQUEST-----\n", authority=1_794_799_000),
    RELEASE,
    Order(fleet="home", device="pi-01", serial=8, action="install", bundle=SHA, issued_unix_s=1.8e9),
    Sealed(statement=encode(RELEASE).decode(), signature="cd" * 64),
    SUCCESSION,
    SealedSuccession(statement=encode(SUCCESSION).decode(), signature="cd" * 64),
]
REPLIES: list[Message] = [
    Grant(run="demo", round=3, update=SHA, missing=((0, 2), (3, 4))),
    Accepted(run="demo", round=3, update=SHA),
    Refused(run="demo", round=3, update=SHA, reason="late"),
    Wait(run="demo", round=3, update=SHA, reason="others go first", again_s=12.5),
]
ENROL_REPLIES: list[Message] = [
    Enrolled(device="pi-01", certificate="-----BEGIN CERTIFICATE-----\n"),
    NotEnrolled(device="pi-01", reason="the token has expired"),
]


def seeds() -> list[bytes]:
    return [
        *(bytes([number]) + encode(message) for number, message in enumerate(HONEST)),
        *(bytes([len(HONEST)]) + encode(message) for message in REPLIES),
        bytes([3]) + b'{"of_later":[{}],' + encode(STATUS)[1:],
    ]


def check(data: bytes) -> None:
    kind = data[0] % (len(HONEST) + 1) if data else 0
    try:
        message: Any = decode_reply(data[1:]) if kind == len(HONEST) else decode(data[1:], type(HONEST[kind]))
    except FrameError:
        return
    again = encode(message)
    assert msgspec.json.decode(again, type=type(message)) == message, "a message is not what it was after a second trip"
