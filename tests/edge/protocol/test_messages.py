import re
import subprocess
import sys

import msgspec
import pytest
from fixtures.repository import DOCS

from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import (
    CHUNK_BYTES,
    Accepted,
    Blob,
    DataNote,
    DeviceStatus,
    Grant,
    HeldModel,
    LocalEvaluation,
    Offer,
    Progress,
    Quality,
    Refused,
    Reply,
    Report,
    RoundTask,
    RunCertificate,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.protocol.releases import Order, Release, Sealed
from sparsyedge.edge.protocol.topics import Topics

SHA = "0123456789abcdef" * 4
EXAMPLES = (
    DeviceStatus,
    RoundTask,
    RunCertificate,
    Offer,
    Report,
    LocalEvaluation,
    DataNote,
    Progress,
    Quality,
    HeldModel,
    Release,
    Order,
    Sealed,
)
"""Kinds that docs/reference/protocol.md shows, beside replies."""
BLOB = Blob(sha256=SHA, bytes=200_000)
TASK = RoundTask(
    run="demo",
    round=2,
    rounds=8,
    state="open",
    cohort=("pi-01", "pi-02"),
    manifest=BLOB,
    model_id=SHA,
    model=BLOB,
    learning_rate=0.2,
    epochs=2,
    batch_size=16,
    sparsity=0.95,
    seed=1337,
    deadline_unix_s=1.75e9,
)
REPORT = Report(
    run="demo",
    round=2,
    phases={"train": PhaseCost(1.5, 3.25), "encode": PhaseCost(0.1, None)},
    energy_source="cpu-model",
    energy_kind="modelled",
    bytes_down=1,
    bytes_up=2,
    steps=3,
    loss=0.5,
    peak_rss_mb=120.5,
    pid=77,
)
OFFER = Offer(run="demo", round=2, base=SHA, update=BLOB, samples=100, report=REPORT)
TOPICS = Topics("home")


@pytest.mark.parametrize("message", [TASK, REPORT, OFFER, DeviceStatus(state="online", boot_id="b", samples=5)])
def test_message_survives_the_wire(message: RoundTask | Report | Offer | DeviceStatus) -> None:
    assert decode(encode(message), type(message)) == message


FIRST_WORDS = """
import sys, threading
from sparsyedge.edge.protocol import messages

sys.setswitchinterval(1e-6)
words = [line.split(" ", 1) for line in sys.stdin.read().splitlines()]
start = threading.Barrier(24)

def listen():
    for kind, payload in words:
        start.wait()
        messages.decode(payload.encode(), getattr(messages, kind))

threads = [threading.Thread(target=listen) for _ in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.heavy
def test_many_threads_may_be_the_first_to_read_a_message() -> None:
    # In a new process, which has not read any message yet; a crash would kill the whole process.
    said = (TASK, REPORT, OFFER, DeviceStatus(state="online", boot_id="b", samples=5))
    words = "\n".join(f"{type(message).__name__} {encode(message).decode()}" for message in said)
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", FIRST_WORDS], input=words, text=True, timeout=300, check=False)
        assert done.returncode == 0


@pytest.mark.parametrize(
    "reply",
    [
        Grant(run="demo", round=2, update=SHA, missing=((0, 3), (5, 6))),
        Accepted(run="demo", round=2, update=SHA),
        Refused(run="demo", round=2, update=SHA, reason="round 2 is closed"),
    ],
)
def test_reply_survives_the_wire_with_its_kind(reply: Reply) -> None:
    assert decode_reply(encode(reply)) == reply


def test_messages_are_json_that_a_person_can_read() -> None:
    assert msgspec.json.decode(encode(Accepted(run="demo", round=2, update=SHA))) == {
        "type": "accepted",
        "run": "demo",
        "round": 2,
        "update": SHA,
    }


@pytest.mark.parametrize(
    ("size", "chunks"), [(0, 1), (1, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES + 1, 2), (10 * CHUNK_BYTES, 10)]
)
def test_blob_knows_its_number_of_chunks(size: int, chunks: int) -> None:
    assert Blob(sha256=SHA, bytes=size).chunks == chunks


def test_topics_are_parsed_below_the_root_of_the_fleet() -> None:
    assert TOPICS.parse(TOPICS.offer("pi-01")) == ("dev", "pi-01", "offer")
    assert TOPICS.parse(TOPICS.upload("pi-01", SHA, 3)) == ("dev", "pi-01", "up", SHA, "3")
    assert TOPICS.parse(Topics("other").round) == ()


def test_no_topic_has_more_levels_than_cloud_brokers_allow() -> None:
    device = "d" * 63
    topics = [
        *(TOPICS.round, TOPICS.lease, TOPICS.catalogue, TOPICS.enrol_request("pi-01"), TOPICS.enrol_reply("c" * 32)),
        *(TOPICS.status(device), TOPICS.progress(device), TOPICS.offer(device)),
        *(TOPICS.report(device), TOPICS.reply(device)),
        *(TOPICS.upload(device, SHA, 10**6), TOPICS.chunk(SHA, 10**6)),
    ]
    assert max(topic.count("/") for topic in topics) <= 7
    assert max(len(topic) for topic in topics) <= 256


def test_examples_in_the_documentation_are_real_messages() -> None:
    text = (DOCS / "reference" / "protocol.md").read_text(encoding="utf-8")
    examples = re.findall(r"```json (\w+)\n(.*?)```", text, flags=re.DOTALL)
    kinds = {kind.__name__: kind for kind in EXAMPLES}
    for name, example in examples:
        payload = example.encode()
        message = decode(payload, kinds[name]) if name in kinds else decode_reply(payload)
        assert type(message).__name__ == name
    assert len(examples) == 16
