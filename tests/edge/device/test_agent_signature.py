"""A device with a pinned signing key trains nothing that the operator has not signed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.fake_coordinator import CHUNK, INITIAL, Coordinator, FakeSession, frame_of, manifest, round_task

from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.model.artifacts import Artifacts, decode_manifest
from sparsyedge.edge.native import library_path
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob, Delta, DeviceStatus, RoundTask, decode
from sparsyedge.edge.security.signature import CONTEXT
from sparsyedge.edge.tensors import model_id

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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epochs": 1001}, "asks for 1001 epochs, the signed manifest allows 1000"),
        ({"sparsity": 0.1}, "asks for sparsity 0.1, the signed manifest for 0.5"),
    ],
)
def test_the_signed_manifest_bounds_what_a_task_may_ask_for(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, object],
    reason: str,
) -> None:
    content = listed()
    coordinator.offer_blob(content)
    signature = KEY.sign(CONTEXT + content).hex()
    agent = make_agent(signing_key=PUBLIC)
    agent._courier.task = round_task(manifest=blob_of(content, chunk_bytes=CHUNK), signature=signature, **changes)
    agent._take_turn()
    assert reason in caplog.text
    assert FakeSession.steps == 0
    # The next task may be within bounds again, so the device declines only this round.
    assert decode(coordinator.sent("status")[-1], DeviceStatus).unfit_round == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": Blob(sha256="ab" * 32, bytes=1 << 30), "model_id": "cd" * 32}, "a model of 1073741824 bytes"),
        ({"manifest": Blob(sha256="ab" * 32, bytes=17 << 20)}, "a manifest of 17825792 bytes"),
    ],
    ids=["model", "manifest"],
)
def test_an_announced_blob_beyond_its_bound_is_not_even_asked_for(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, object],
    reason: str,
) -> None:
    agent = make_agent()
    agent._courier.task = round_task(**changes)
    agent._take_turn()
    assert reason in caplog.text
    assert "ab" * 32 not in coordinator.fetched


def test_a_model_that_is_not_the_one_of_the_task_is_never_trained(
    coordinator: Coordinator, make_agent: MakeAgent, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    base = {name: tensor + 1 for name, tensor in INITIAL.items()}
    other = {name: tensor + 2 for name, tensor in INITIAL.items()}
    agent = make_agent()
    # First a whole model that is not the one the task names, then a difference to a model that the device holds.
    whole = coordinator.offer_blob(frame_of(other, base_id=model_id(other)))
    agent._courier.task = round_task(round=2, model_id=model_id(base), model=whole)
    agent._take_turn()
    assert "holds model" in caplog.text
    caplog.clear()
    honest = coordinator.offer_blob(frame_of(base, base_id=model_id(base)))
    assert agent._maker._inputs.model(
        round_task(round=2, model_id=model_id(base), model=honest),
        Artifacts(tmp_path, decode_manifest(manifest(), source="it")),
        wanted=lambda: True,
    )
    false = coordinator.offer_blob(frame_of(other, base_id=model_id(base), base=base))
    deltas = (Delta(base=model_id(base), model=false),)
    agent._courier.task = round_task(round=3, model_id="ab" * 32, model=whole, deltas=deltas)
    agent._take_turn()
    assert "holds model" in caplog.text
    assert FakeSession.steps == 0


def test_a_device_of_a_fleet_without_an_authority_asks_for_no_signature(
    coordinator: Coordinator, make_agent: MakeAgent
) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    assert coordinator.sent("offer")


def test_artifacts_that_the_disk_has_no_room_for_are_not_fetched(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    agent = make_agent()
    agent._courier.task = round_task()
    agent._take_turn()
    status = decode(coordinator.sent("status")[-1], DeviceStatus)
    assert "has 4096 free; make room there" in status.unfit
    # Somebody may make room: only this round is declined.
    assert status.unfit_round == 1
    assert len(coordinator.fetched) == 1, "the manifest alone"
