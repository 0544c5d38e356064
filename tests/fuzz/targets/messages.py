"""Control messages: each kind, by the first byte, as a device, a coordinator or a newcomer would read it."""

from __future__ import annotations

from typing import Any

import msgspec

from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import (
    Accepted,
    Blob,
    Catalogue,
    Delta,
    DeviceStatus,
    Grant,
    Lease,
    Message,
    Offer,
    Refused,
    Report,
    RoundTask,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.security.enrolment_messages import Enrolled, EnrolRequest, NotEnrolled

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
    signature="cd" * 64,
)
OFFER = Offer(run="demo", round=3, base=SHA, update=BLOB, samples=300, report=REPORT)
STATUS = DeviceStatus(
    state="online", boot_id="0f" * 8, samples=300, software="0.1.0", unfit="too warm: 81 C", speaks=OURS
)

HONEST: list[Message] = [
    TASK,
    Catalogue(blobs=(BLOB, BLOB)),
    Lease(state="held", holder="0f" * 16, run="demo", place="host:/runs/demo", since_unix_s=1.8e9),
    STATUS,
    REPORT,
    OFFER,
    EnrolRequest(device="pi-01", token="9" * 43, csr="-----BEGIN CERTIFICATE REQUEST-----\n", reply="0f" * 16),
]
REPLIES: list[Message] = [
    Grant(run="demo", round=3, update=SHA, missing=((0, 2), (3, 4))),
    Accepted(run="demo", round=3, update=SHA),
    Refused(run="demo", round=3, update=SHA, reason="late"),
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
