"""A device with a pinned signing key trains nothing that the operator has not signed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.fake_coordinator import CHUNK, Coordinator, FakeSession, manifest, round_task

from sparsyedge.edge.agent import Agent
from sparsyedge.edge.messages import DeviceStatus, RoundTask, decode
from sparsyedge.edge.native import library_path
from sparsyedge.edge.signature import CONTEXT
from sparsyedge.edge.transfer import blob_of

MakeAgent = Callable[..., Agent]
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw().hex()


def announce(coordinator: Coordinator, content: bytes, signature: str) -> RoundTask:
    coordinator.offer_blob(content)
    task = round_task(manifest=blob_of(content, chunk_bytes=CHUNK), signature=signature)
    coordinator.announce(task)
    return task


def listed() -> bytes:
    sha256 = hashlib.sha256(library_path().read_bytes()).hexdigest()
    return manifest(op_libraries=[{"platform": "here", "sha256": sha256}])


def test_signed_artifacts_are_trained(coordinator: Coordinator, make_agent: MakeAgent) -> None:
    announce(coordinator, listed(), KEY.sign(CONTEXT + listed()).hex())
    make_agent(signing_key=PUBLIC).run()
    assert coordinator.sent("offer")


@pytest.mark.parametrize("case", ["unsigned", "altered", "another key", "another library"])
def test_other_artifacts_are_refused_with_a_reason_and_never_run(
    coordinator: Coordinator, make_agent: MakeAgent, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    content, key, reason = listed(), KEY, "altered or signed by somebody else"
    signature = key.sign(CONTEXT + content).hex()
    match case:
        case "unsigned":
            signature, reason = "", "not signed"
        case "altered":
            content = content.replace(b'"width":8', b'"width":9')
        case "another key":
            signature = Ed25519PrivateKey.generate().sign(CONTEXT + content).hex()
        case _:
            content = manifest(op_libraries=[{"platform": "elsewhere", "sha256": "ab" * 32}])
            signature, reason = KEY.sign(CONTEXT + content).hex(), "the signed manifest lists"
    task = announce(coordinator, content, signature)
    agent = make_agent(signing_key=PUBLIC)
    agent._courier.task = task
    agent._take_turn()
    assert reason in caplog.text
    assert FakeSession.steps == 0
    assert not coordinator.sent("offer")
    status = decode(coordinator.sent("status")[-1], DeviceStatus)
    assert (status.state, status.unfit_round) == ("online", 0)
    assert reason in status.unfit


def test_a_device_of_a_fleet_without_an_authority_asks_for_no_signature(
    coordinator: Coordinator, make_agent: MakeAgent
) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    assert coordinator.sent("offer")
