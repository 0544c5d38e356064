"""Whether an offer is the device's own; test_forgeries.py covers forgeries at the broker."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from fixtures.reports import plain_report
from fixtures.secured import make_member

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.offer_proofs import OfferProofs
from sparsyedge.edge.protocol.messages import Blob, Offer
from sparsyedge.edge.security.identity import Identity
from sparsyedge.edge.security.signature import update_statement

OFFER = Offer(
    run="r1", round=1, base="ab" * 32, update=Blob(sha256="cd" * 32, bytes=10), samples=5, report=plain_report()
)


@pytest.fixture
def config(authority: Authority, tmp_path: Path) -> RunConfig:
    return RunConfig(
        name="r1",
        artifacts="none",
        run_dir=str(tmp_path / "run"),
        dataset="none",
        fleet="lab",
        rounds=1,
        cohort_size=1,
        authority=str(authority.folder),
    )


@pytest.fixture
def member(authority: Authority, tmp_path: Path) -> Identity:
    return make_member(authority, "d1", tmp_path / "d1")


def signed(member: Identity, offer: Offer = OFFER, *, device: str = "d1", fleet: str = "lab") -> Offer:
    statement = update_statement(offer, fleet=fleet, device=device)
    return msgspec.structs.replace(offer, signature=member.sign(statement).hex())


def test_a_device_proves_its_own_offer_and_nobody_elses(config: RunConfig, member: Identity) -> None:
    proofs = OfferProofs(config)
    assert proofs.holds("d1", signed(member))
    assert not proofs.holds("d2", signed(member))
    assert not proofs.holds("d2", signed(member, device="d2"))
    assert not proofs.holds("d1", OFFER)
    assert not proofs.holds("d1", signed(member, fleet="home"))


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 6},
        {"round": 2},
        {"run": "r2"},
        {"base": "00" * 32},
        {"update": Blob(sha256="ee" * 32, bytes=10)},
        {"update": Blob(sha256="cd" * 32, bytes=11)},
        {"signature": "00" * 70},
    ],
    ids=["samples", "round", "run", "base", "update", "bytes", "signature"],
)
def test_nothing_that_counts_may_change_in_a_signed_offer(
    config: RunConfig, member: Identity, changes: dict[str, object]
) -> None:
    assert not OfferProofs(config).holds("d1", msgspec.structs.replace(signed(member), **changes))


def test_a_repeated_offer_is_checked_once(config: RunConfig, member: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs, offer = OfferProofs(config), signed(member)
    assert proofs.holds("d1", offer)
    # A second check would fail.
    monkeypatch.setattr(proofs, "_is_signed", lambda *given: False)
    assert all(proofs.holds("d1", offer) for _ in range(100))


def test_forged_offers_have_the_ledger_looked_up_once_in_a_while(
    config: RunConfig, member: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs, looked_up = OfferProofs(config, clock=lambda: 0.0), list[str]()
    look_up = proofs._look_up

    def count(device: str) -> ec.EllipticCurvePublicKey | None:
        looked_up.append(device)
        return look_up(device)

    monkeypatch.setattr(proofs, "_look_up", count)
    for samples in range(1, 101):
        assert not proofs.holds("d1", msgspec.structs.replace(OFFER, samples=samples, signature="00" * 70))
    assert looked_up == ["d1"]
    assert proofs.holds("d1", signed(member))


def test_another_token_for_a_member_does_not_void_its_certificate(
    authority: Authority, config: RunConfig, member: Identity
) -> None:
    authority.invite("d1")
    assert OfferProofs(config).holds("d1", signed(member))


def test_a_ledger_from_before_certificates_were_kept_is_brought_up_to_date(
    authority: Authority, config: RunConfig, member: Identity
) -> None:
    with sqlite3.connect(authority.folder / "authority.sqlite") as db:
        db.execute("ALTER TABLE certificates DROP COLUMN certificate")
        db.execute("DROP TABLE runs")
    db.close()
    assert OfferProofs(config).holds("d1", signed(member))


def test_a_fleet_without_an_authority_asks_for_no_signature(config: RunConfig) -> None:
    assert OfferProofs(msgspec.structs.replace(config, authority=None)).holds("d1", OFFER)
