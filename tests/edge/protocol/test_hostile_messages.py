"""Control messages that a hostile sender made up: each is a FrameError, whatever is wrong with it."""

import msgspec
import pytest

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.messages import DeviceStatus, Offer, Report, RoundTask, decode, decode_reply

SHA = "0" * 64
# Before 3.14 Python counts levels; since then it looks at the stack, which has room for some 100,000.
DEEP = 2_000_000
BLOB = {"sha256": SHA, "bytes": 10, "chunk_bytes": 1024}
REPORT = {
    "run": "demo",
    "round": 1,
    "phases": {"train": {"seconds": 1.0, "joules": None}},
    "energy_source": "none",
    "energy_kind": "none",
    "bytes_down": 0,
    "bytes_up": 0,
    "steps": 1,
    "loss": 0.5,
    "peak_rss_mb": 100.0,
    "pid": 1,
}
OFFER = {"run": "demo", "round": 1, "base": SHA, "update": BLOB, "samples": 5, "report": REPORT}


def json(content: object) -> bytes:
    return msgspec.json.encode(content)


def test_the_honest_offer_is_taken() -> None:
    assert decode(json(OFFER), Offer).samples == 5


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"run": "\xff"}',
        json({**OFFER, "run": "a/b"}),
        json({**OFFER, "run": "a+"}),
        json({**OFFER, "run": "demo\n"}),
        json({**OFFER, "run": ""}),
        json({**OFFER, "run": "x" * 64}),
        json({**OFFER, "round": 0}),
        json({**OFFER, "round": 1.5}),
        json({**OFFER, "base": SHA.upper().replace("0", "F")}),
        json({**OFFER, "base": SHA + "\n"}),
        json({**OFFER, "samples": 0}),
        json({**OFFER, "samples": -1}),
        json({**OFFER, "update": {**BLOB, "bytes": 2**40}}),
        json({**OFFER, "update": {**BLOB, "bytes": -1}}),
        json({**OFFER, "update": {**BLOB, "chunk_bytes": 1}}),
        json({**OFFER, "update": {**BLOB, "chunk_bytes": 2**30}}),
        json({**OFFER, "update": {**BLOB, "sha256": "../../etc/passwd"}}),
        json({**OFFER, "report": {**REPORT, "energy_kind": "guessed"}}),
        json({**OFFER, "report": {**REPORT, "phases": {"train": {"seconds": -1.0, "joules": None}}}}),
        json({**OFFER, "report": {**REPORT, "loss": None}}),
        json(OFFER).replace(b'"joules":null', b'"joules":null,"deep":' + b"[" * DEEP + b"]" * DEEP),
    ],
)
def test_malformed_offer_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not a valid Offer"):
        decode(payload, Offer)


@pytest.mark.parametrize("kind", [Offer, Report, RoundTask, DeviceStatus])
def test_a_message_of_another_kind_is_refused(kind: type[Offer | Report | RoundTask | DeviceStatus]) -> None:
    with pytest.raises(FrameError):
        decode(b'{"type": "grant"}', kind)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        json({"type": "granted", "run": "demo", "round": 1, "update": SHA}),
        json({"run": "demo", "round": 1, "update": SHA}),
        json({"type": "grant", "run": "demo", "round": 1, "update": SHA, "missing": [[-1, 2]]}),
        json({"type": "grant", "run": "demo", "round": 1, "update": SHA, "missing": [[1]]}),
        json({"type": "refused", "run": "demo", "round": 1, "update": SHA}),
    ],
)
def test_malformed_reply_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not a valid reply"):
        decode_reply(payload)


TASK = {
    "run": "demo",
    "round": 1,
    "rounds": 2,
    "state": "open",
    "cohort": [],
    "manifest": BLOB,
    "model_id": SHA,
    "model": BLOB,
    "learning_rate": 0.1,
    "epochs": 1,
    "batch_size": 1,
    "sparsity": 0.5,
    "seed": 1,
    "deadline_unix_s": 0.0,
}


@pytest.mark.parametrize("url", ["x" * 501, 7, None, ["https://store.example"]])
def test_a_blob_store_that_is_no_short_text_is_refused(url: object) -> None:
    with pytest.raises(FrameError, match="not a valid RoundTask"):
        decode(json({**TASK, "blobs": url}), RoundTask)


def test_a_blob_store_of_an_unknown_scheme_leaves_the_task_readable() -> None:
    assert decode(json({**TASK, "blobs": "ipfs://later"}), RoundTask).blobs == "ipfs://later"
