"""Which statements about the fleet's authority a device follows, and which it refuses with what sentence."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparsyedge.coordinator.authority import certificates
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.succession import (
    MAX_PAYLOAD_BYTES,
    SealedSuccession,
    Succession,
    TrustedAuthority,
    TrustRecord,
    judge,
    seal,
)


class Party:
    """An authority with both of its keys."""

    def __init__(self, name: str) -> None:
        key = certificates.new_key()
        self.ca_key = key
        self.certificate = certificates.make_authority(key, fleet=name)
        self.key = Ed25519PrivateKey.generate()

    @property
    def public(self) -> TrustedAuthority:
        pem = certificates.certificate_pem(self.certificate).decode()
        return TrustedAuthority(ca=pem, signing_key=self.key.public_key().public_bytes_raw().hex())


OLD, NEW, THIEF = Party("lab"), Party("lab 2"), Party("thief")
ENROLLED = TrustRecord(number=0, authorities=(OLD.public,))
BOTH = TrustRecord(number=10, authorities=(NEW.public, OLD.public))


def say(number: int, *parties: Party, by: Party, fleet: str = "lab") -> bytes:
    named = tuple(party.public for party in parties)
    return seal(Succession(fleet=fleet, number=number, authorities=named), by.key)


def refusal(payload: bytes, record: TrustRecord = ENROLLED) -> str:
    with pytest.raises(SecurityError) as caught:
        judge(payload, record, fleet="lab")
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


def test_a_device_follows_from_one_authority_over_both_to_the_next() -> None:
    both = judge(say(10, NEW, OLD, by=OLD), ENROLLED, fleet="lab")
    assert both == BOTH
    last = judge(say(11, NEW, by=NEW), both, fleet="lab")
    assert last == TrustRecord(number=11, authorities=(NEW.public,))


def test_a_device_goes_back_if_the_operator_aborts() -> None:
    back = judge(say(11, OLD, NEW, by=OLD), BOTH, fleet="lab")
    assert back.authorities == (OLD.public, NEW.public)
    assert judge(say(12, OLD, by=OLD), back, fleet="lab").authorities == (OLD.public,)


def test_a_statement_that_comes_again_changes_nothing() -> None:
    assert judge(say(10, NEW, OLD, by=OLD), BOTH, fleet="lab") is BOTH


def test_an_earlier_statement_is_a_replay() -> None:
    done = TrustRecord(number=11, authorities=(NEW.public, OLD.public))
    assert "it is an old one" in refusal(say(10, NEW, OLD, by=OLD), done)


def test_two_statements_of_one_number_are_not_both_followed() -> None:
    assert "of the same number" in refusal(say(10, THIEF, OLD, by=OLD), BOTH)


def test_the_old_key_says_nothing_any_more_once_it_is_forgotten() -> None:
    done = TrustRecord(number=11, authorities=(NEW.public,))
    assert "not signed with the fleet's key" in refusal(say(12, OLD, NEW, by=OLD), done)


def test_whoever_has_the_authority_s_own_key_but_not_the_signing_key_says_nothing() -> None:
    """A thief of ca.key: everything is right but the signature."""
    statement = Succession(fleet="lab", number=10, authorities=(THIEF.public, OLD.public))
    assert "not signed with the fleet's key" in refusal(seal(statement, THIEF.key))


ALTERED: dict[str, Callable[[str], str]] = {
    "another number": lambda text: text.replace('"number":10', '"number":99'),
    "another key": lambda text: text.replace(NEW.public.signing_key, THIEF.public.signing_key),
    "another fleet": lambda text: text.replace('"lab"', '"bal"'),
    "one space more": lambda text: text.replace(",", ", ", 1),
}


@pytest.mark.parametrize("how", ALTERED)
def test_an_altered_statement_is_refused(how: str) -> None:
    sealed = msgspec.json.decode(say(10, NEW, OLD, by=OLD), type=SealedSuccession)
    altered = msgspec.structs.replace(sealed, statement=ALTERED[how](sealed.statement))
    assert altered != sealed
    assert "it was altered" in refusal(msgspec.json.encode(altered))


def test_a_statement_for_another_fleet_is_refused() -> None:
    assert "it is for fleet attic" in refusal(say(10, NEW, OLD, by=OLD, fleet="attic"))


def test_no_statement_leads_to_a_stranger_in_one_step() -> None:
    assert "before another was trusted beside it" in refusal(say(10, NEW, by=OLD))
    assert "before another was trusted beside it" in refusal(say(10, NEW, THIEF, by=OLD))
    renamed = Party("lab")
    renamed.key = OLD.key
    assert "does not trust yet" in refusal(say(10, renamed, by=OLD))
    assert "the same signing key twice" in refusal(say(10, renamed, OLD, by=OLD))


def test_what_is_not_an_authority_is_not_trusted() -> None:
    key = certificates.new_key()
    member = certificates.issue_member(OLD.certificate, OLD.ca_key, key.public_key(), name="pi-01")
    for ca in (certificates.certificate_pem(member).decode(), NEW.public.ca * 2, "no certificate", ""):
        named = (TrustedAuthority(ca=ca, signing_key=NEW.public.signing_key), OLD.public)
        payload = seal(Succession(fleet="lab", number=10, authorities=named), OLD.key)
        assert "the certificate of its authority" in refusal(payload)


def test_what_is_too_long_or_no_statement_at_all_is_refused_unread() -> None:
    assert f"allowed are {MAX_PAYLOAD_BYTES}" in refusal(say(10, NEW, OLD, by=OLD).ljust(MAX_PAYLOAD_BYTES + 1))
    for payload in (b"", b"{", b"\xff", b"[" * 5000, b'{"statement":"x","signature":"ab"}', b"null"):
        assert "it cannot be read" in refusal(payload)
    unreadable = seal(Succession(fleet="lab", number=10, authorities=(NEW.public, OLD.public)), OLD.key)
    assert judge(unreadable, ENROLLED, fleet="lab") == BOTH
