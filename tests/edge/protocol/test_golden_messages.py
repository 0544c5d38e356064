"""Messages of protocol 1 and a manifest of version 5, recorded once: see tests/golden/README.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fixtures.repository import GOLDEN

from sparsyedge.edge import compatibility
from sparsyedge.edge.compatibility import DEVICE_EVALUATION, OURS
from sparsyedge.edge.errors import VersionError
from sparsyedge.edge.model.artifacts import Artifacts, decode_manifest, encode_manifest
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.protocol.messages import (
    Accepted,
    Catalogue,
    DeviceStatus,
    Grant,
    Lease,
    Message,
    Offer,
    Progress,
    Refused,
    Report,
    RoundTask,
    Wait,
    decode,
    encode,
)
from sparsyedge.edge.protocol.releases import Order, Release, Sealed
from sparsyedge.edge.security.enrolment_messages import Enrolled, EnrolRequest, NotEnrolled
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.release_seal import open_release
from sparsyedge.edge.security.succession import SealedSuccession, Succession, TrustRecord, judge
from sparsyedge.edge.security.trust import Trust

KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        *(RoundTask, Catalogue, Lease, DeviceStatus, Progress, Report, Offer, Grant, Accepted, Refused, Wait),
        *(EnrolRequest, Enrolled, NotEnrolled),
        *(Sealed, Release, Order),
        *(SealedSuccession, Succession),
    )
}
SIGNING_KEY = "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"

RELEASE_KEY = "34d68641289ca27fdd640584281510cbd6f7355cd2e7de50b37d6bd0b0b401c8"


def golden(kind: str) -> bytes:
    return (GOLDEN / "messages" / f"{kind}.json").read_bytes()


def manifest_content() -> bytes:
    """The recorded manifest with the current op library's ABI version, which changes independently."""
    content = (GOLDEN / "manifest.json").read_bytes()
    return re.sub(rb'"ops_abi": \d+', f'"ops_abi": {ABI_VERSION}'.encode(), content)


@pytest.mark.parametrize("kind", KINDS)
def test_golden_message_is_still_read_and_written_byte_by_byte(kind: str) -> None:
    message: Any = decode(golden(kind), KINDS[kind])
    assert encode(message) == golden(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_golden_message_is_read_the_same_with_a_field_of_a_later_version(kind: str) -> None:
    later = b'{"added_later":{"x":[1,2]},' + golden(kind)[1:]
    assert decode(later, KINDS[kind]) == decode(golden(kind), KINDS[kind])


@pytest.mark.parametrize("kind", ["RoundTask", "Report"])
def test_golden_message_about_an_evaluation_is_still_read_and_written_byte_by_byte(kind: str) -> None:
    recorded = (GOLDEN / "evaluation" / f"{kind}.json").read_bytes()
    message: Any = decode(recorded, KINDS[kind])
    assert encode(message) == recorded
    assert message.evaluation == 7


def test_a_reader_without_the_feature_refuses_the_golden_task_of_an_evaluation_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = msgspec.structs.replace(OURS, features=tuple(each for each in OURS.features if each != DEVICE_EVALUATION))
    monkeypatch.setattr(compatibility, "OURS", older)
    with pytest.raises(VersionError, match="without `device-evaluation`"):
        decode((GOLDEN / "evaluation" / "RoundTask.json").read_bytes(), RoundTask)


def test_every_kind_of_message_has_a_golden_one() -> None:
    assert {path.stem for path in (GOLDEN / "messages").glob("*.json")} == set(KINDS)


def test_the_golden_task_is_still_believed(tmp_path: Path) -> None:
    trust = Trust(PinnedKeys(SIGNING_KEY), fleet="home", path=tmp_path / "trust.json")
    assert trust.believes(golden("RoundTask"))
    assert not trust.believes(b'{"added_later":1,' + golden("RoundTask")[1:]), "the proof covers fields of any version"


def test_the_golden_release_is_still_believed_and_keeps_its_id() -> None:
    release, _ = open_release(golden("Sealed"), fleet="home", signing_key=RELEASE_KEY)
    assert release == decode(golden("Release"), Release)
    assert release.bundle == decode(golden("Order"), Order).bundle, "devices would install it once more"


def test_the_golden_statement_about_the_authority_is_still_followed() -> None:
    statement = decode(golden("Succession"), Succession)
    present = TrustRecord(number=0, authorities=statement.authorities[1:])
    assert present.authorities[0].signing_key == SIGNING_KEY
    followed = judge(golden("SealedSuccession"), present, fleet="home")
    assert followed == TrustRecord(number=1_794_799_000, authorities=statement.authorities)


def test_the_proof_is_the_last_field_of_a_task() -> None:
    assert RoundTask.__struct_fields__[-1] == "proof"


def test_golden_manifest_is_still_read_and_written_byte_by_byte() -> None:
    content = manifest_content()
    assert encode_manifest(decode_manifest(content, source="it")) == content


def test_golden_manifest_still_stands_for_the_same_artifacts() -> None:
    # A run continues only with artifacts of this id, so the id must not depend on the reader's version.
    later = manifest_content().replace(b"{\n", b'{\n  "added_later": 1,\n', 1)
    of_later, of_golden = (
        Artifacts(Path(), decode_manifest(content, source="it")).id for content in (later, manifest_content())
    )
    assert of_later == of_golden
