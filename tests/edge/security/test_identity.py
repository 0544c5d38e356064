"""A device's trust on disk: whole or absent, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.secured import make_authority, make_member

from sparsyedge.coordinator.authority import certificates
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.identity import CA_NAME, RECORD_NAME, SIGNING_KEY_NAME, Identity
from sparsyedge.edge.security.succession import TrustedAuthority, TrustRecord


def public(authority: Authority) -> TrustedAuthority:
    pem = certificates.certificate_pem(authority.certificate()).decode()
    return TrustedAuthority(ca=pem, signing_key=authority.signing_key)


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return make_authority(tmp_path / "other")


@pytest.fixture
def identity(authority: Authority, tmp_path: Path) -> Identity:
    return make_member(authority, "pi-01", tmp_path / "identity")


def certified(identity: Identity, by: Authority) -> str:
    return certificates.certificate_pem(by.issue(identity._key().public_key(), "pi-01", days=30)).decode()


def test_a_device_trusts_what_it_enrolled_with(identity: Identity, authority: Authority) -> None:
    assert identity.record == TrustRecord(number=0, authorities=(public(authority),))
    assert identity.is_certified
    assert not (identity.folder / RECORD_NAME).exists()


def test_a_certificate_of_the_next_authority_replaces_one_that_lasts_longer(
    identity: Identity, authority: Authority, other: Authority
) -> None:
    with pytest.raises(SecurityError, match="not from the pinned authority"):
        identity.renew(certified(identity, other), device="pi-01")
    identity.trust(TrustRecord(number=5, authorities=(public(other), public(authority))))
    assert not identity.is_certified
    assert identity.is_of("pi-01")
    identity.renew(certified(identity, other), device="pi-01")
    assert identity.is_certified
    taken = identity.serial
    # An answer that was on its way comes late.
    identity.renew(certified(identity, authority), device="pi-01")
    assert identity.serial == taken
    # Versions that know of one authority look at the first.
    assert certificates.first_pem((identity.folder / CA_NAME).read_bytes()).decode() == public(other).ca
    assert (identity.folder / SIGNING_KEY_NAME).read_text().strip() == authority.signing_key


def test_what_the_record_says_counts_after_a_crash_before_the_other_files_followed(
    identity: Identity, authority: Authority, other: Authority
) -> None:
    before = {name: (identity.folder / name).read_bytes() for name in (CA_NAME, SIGNING_KEY_NAME)}
    identity.trust(TrustRecord(number=5, authorities=(public(other), public(authority))))
    after = {name: (identity.folder / name).read_bytes() for name in before}
    assert after[CA_NAME] != before[CA_NAME]
    for name, content in before.items():
        (identity.folder / name).write_bytes(content)
    opened = Identity.open(identity.folder)
    assert {name: (identity.folder / name).read_bytes() for name in before} == after
    assert opened.signing_keys == (other.signing_key, authority.signing_key)


def test_a_record_that_cannot_be_read_is_named(identity: Identity) -> None:
    (identity.folder / RECORD_NAME).write_text("{")
    with pytest.raises(SecurityError, match=r"authorities\.json.*enrol this device again"):
        Identity.open(identity.folder)


def test_a_new_enrolment_begins_with_its_own_file(identity: Identity, authority: Authority, other: Authority) -> None:
    identity.trust(TrustRecord(number=5, authorities=(public(other), public(authority))))
    again = make_member(authority, "pi-01", identity.folder)
    assert again.record == TrustRecord(number=0, authorities=(public(authority),))
