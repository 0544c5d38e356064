"""Certificates that are renewed before they end, over a real broker and request by request."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.secured import make_member

from sparsyedge.coordinator.authority import certificates
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.authority.renewals import PATIENCE_S, Renewals
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.device.renewal import Renewal
from sparsyedge.edge.errors import FrameError, LinkError, SecurityError
from sparsyedge.edge.protocol.messages import encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.enrolment_messages import (
    RENEW_BEFORE_S,
    NotRenewed,
    RenewalReply,
    RenewalRequest,
    Renewed,
    decode_renewal,
)
from sparsyedge.edge.security.identity import Identity, make_csr

PATIENT_S = 60.0
SOON_DAYS = 10


def member_that_ends_soon(authority: Authority, folder: Path, device: str = "pi-01") -> Identity:
    """A device with a certificate for a few more days, and none on record that lasts longer."""
    identity = make_member(authority, device, folder)
    issued = authority.issue(identity._key().public_key(), device, days=SOON_DAYS)
    pem = certificates.certificate_pem(issued).decode()
    with authority.ledger() as ledger:
        expires_at = issued.not_valid_after_utc.timestamp()
        assert ledger.renew(device, certificate=pem, serial=issued.serial_number, expires_at=expires_at)
    identity.finish(pem, device=device)
    return identity


def connected(authority: Authority, identity: Identity, device: str = "pi-01") -> Link:
    link = Link("127.0.0.1", authority.settings.port, identity=device, tls=identity.tls)
    link.open()
    return link


@pytest.mark.mosquitto
def test_a_member_renews_its_certificate_over_its_own_connection(secured: Authority, tmp_path: Path) -> None:
    identity = member_that_ends_soon(secured, tmp_path / "identity")
    shutil.copytree(identity.folder, tmp_path / "before")
    before = Identity(tmp_path / "before")
    with serving(secured):
        link = connected(secured, identity)
        member = Member(device="pi-01", topics=Topics("lab"), boot_id=uuid.uuid4().hex, software="test", samples=1)
        courier = Courier(link, member)
        renewal = Renewal(identity, courier)
        renewal.check()
        until_s = time.monotonic() + PATIENT_S
        while identity.expires_s == before.expires_s and time.monotonic() < until_s:
            courier.listen()
            # The coordinator may not have been listening yet; a device asks again in an hour.
            if int(time.monotonic()) % 2 == 0:
                renewal._asked_s = -1e9
                renewal.check()
        link.close()
    assert identity.expires_s > time.time() + RENEW_BEFORE_S
    # Both are good: the answer might have been lost.
    for each in (before, identity):
        connected(secured, each).close()
    with secured.ledger() as ledger:
        assert ledger.revoke("pi-01") == 3
        secured.write_lists(ledger)
    assert secured.reload()
    for each in (before, identity):
        until_s = time.monotonic() + PATIENT_S
        while time.monotonic() < until_s:
            try:
                connected(secured, each).close()
            except LinkError:
                break
        else:
            pytest.fail("a revoked device got in")


Ask = Callable[..., RenewalReply | None]


@pytest.fixture
def ask(authority: Authority) -> Ask:
    now = [0.0]
    renewals = Renewals(authority, clock=lambda: now[0])

    def ask(payload: bytes | RenewalRequest, device: str = "pi-01", *, later_s: float = PATIENCE_S) -> object:
        now[0] += later_s
        content = payload if isinstance(payload, bytes) else encode(payload)
        with authority.ledger() as ledger:
            return renewals.answer(ledger, device, content, now_s=time.time())

    return ask  # type: ignore[return-value]


def request_of(identity: Identity, device: str = "pi-01") -> RenewalRequest:
    return RenewalRequest(device=device, csr=identity.ask_again(device))


def test_a_lost_answer_is_repeated_and_a_fresh_certificate_is_not_renewed(
    authority: Authority, tmp_path: Path, ask: Ask
) -> None:
    identity = member_that_ends_soon(authority, tmp_path / "identity")
    first = ask(request_of(identity))
    assert isinstance(first, Renewed)
    assert ask(request_of(identity), later_s=PATIENCE_S / 2) is None
    assert ask(request_of(identity)) == first
    identity.renew(first.certificate, device="pi-01")
    assert ask(request_of(identity)) == first


def test_who_does_not_hold_the_key_or_is_no_member_gets_nothing(authority: Authority, tmp_path: Path, ask: Ask) -> None:
    identity = member_that_ends_soon(authority, tmp_path / "identity")
    other = make_member(authority, "pi-02", tmp_path / "other")
    stranger = RenewalRequest(device="pi-01", csr=make_csr(other._key(), "pi-01"))
    cases = {
        "not for the key": ask(stranger),
        "for another device": ask(request_of(other, "pi-02"), "pi-01"),
        "another name": ask(RenewalRequest(device="pi-01", csr=identity.ask_again("pi-02"))),
        "is no member": ask(RenewalRequest(device="pi-09", csr=make_csr(other._key(), "pi-09")), "pi-09"),
        "not a valid RenewalRequest": ask(b"{}"),
        "too long": ask(b"x" * 20_000),
        "cannot be read": ask(RenewalRequest(device="pi-01", csr="-----BEGIN")),
    }
    for reason, reply in cases.items():
        assert isinstance(reply, NotRenewed)
        assert reason in reply.reason
    with authority.ledger() as ledger:
        ledger.revoke("pi-01")
    revoked = ask(request_of(identity))
    assert isinstance(revoked, NotRenewed)
    assert "revoked" in revoked.reason


class NoCoordinator:
    """Collects what a device asks."""

    device = "pi-01"

    def __init__(self) -> None:
        self.asked: list[RenewalRequest] = []
        self.on_identity: Callable[[bytes], None] | None = None

    def ask_renewal(self, request: RenewalRequest) -> None:
        self.asked.append(request)


@pytest.mark.parametrize(
    ("days", "clock_s", "asks"),
    [(SOON_DAYS, time.time(), 1), (None, time.time(), 0), (SOON_DAYS, 1000.0, 0)],
    ids=["it ends soon", "it is fresh", "the clock is wrong"],
)
def test_a_device_asks_once_when_it_is_time(
    days: int | None, clock_s: float, asks: int, authority: Authority, tmp_path: Path
) -> None:
    make = member_that_ends_soon if days else lambda authority, folder: make_member(authority, "pi-01", folder)
    courier = NoCoordinator()
    renewal = Renewal(make(authority, tmp_path / "identity"), courier, clock=lambda: clock_s)  # type: ignore[arg-type]
    for _ in range(3):
        renewal.check()
    assert len(courier.asked) == asks


def test_a_device_keeps_its_certificate_whatever_a_false_answer_says(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = member_that_ends_soon(authority, tmp_path / "identity")
    other = make_member(authority, "pi-02", tmp_path / "other")
    kept = (identity.folder / "device.pem").read_bytes()
    courier = NoCoordinator()
    Renewal(identity, courier)  # type: ignore[arg-type]
    assert courier.on_identity is not None
    foreign = (other.folder / "device.pem").read_text()
    courier.on_identity(encode(Renewed(device="pi-01", certificate=foreign)))
    courier.on_identity(encode(Renewed(device="pi-01", certificate="nonsense")))
    shorter = certificates.certificate_pem(authority.issue(identity._key().public_key(), "pi-01", days=1)).decode()
    courier.on_identity(encode(Renewed(device="pi-01", certificate=shorter)))
    courier.on_identity(encode(NotRenewed(device="pi-01", reason="because\nof \x1b[31mthis")))
    assert (identity.folder / "device.pem").read_bytes() == kept
    assert "a new certificate is not used" in caplog.text
    assert "because of ?[31mthis" in caplog.text
    for payload in (b"", b"{}", b"\xff", b'{"type":"renewed","device":"../x","certificate":""}'):
        with pytest.raises(FrameError):
            decode_renewal(payload)
    with pytest.raises(SecurityError):
        Identity(tmp_path / "nothing").expires_s  # noqa: B018
