"""A coordinator's clock that is off by years: certificates made then must still work once it is corrected."""

from __future__ import annotations

import datetime
import time
from contextlib import closing
from pathlib import Path

import pytest
from cryptography import x509
from fixtures.secured import make_authority, make_member

from sparsyedge.coordinator.authority import certificates, mosquitto
from sparsyedge.coordinator.authority import ledger as ledger_module
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import answer
from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.coordinator.rounds.deadlines import patience_s
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.messages import Report
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.security.enrolment_messages import EnrolRequest, NotEnrolled
from sparsyedge.edge.security.identity import make_csr

YEAR_S = 365 * 86_400.0
LIMIT_S = 300.0


class WrongClock(datetime.datetime):
    """Python's clock, some years off."""

    years = 0.0

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.now(tz) + datetime.timedelta(days=365 * cls.years)


def set_clock(years: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shift the clock of certificates and ledger by some years."""

    class Clock:
        UTC, timedelta = datetime.UTC, datetime.timedelta

        class datetime(WrongClock):  # noqa: N801
            pass

    Clock.datetime.years = years
    monkeypatch.setattr(certificates, "datetime", Clock)
    real = time.time

    class Time:
        @staticmethod
        def time() -> float:
            return real() + years * YEAR_S

    monkeypatch.setattr(ledger_module, "time", Time)


@pytest.mark.parametrize("years", [-56, -5, 10])
def test_certificates_made_by_a_wrong_clock_are_good_today(
    years: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(years, monkeypatch)
    authority = make_authority(tmp_path / "fleet")
    now = datetime.datetime.now(datetime.UTC)
    for name in ("ca", "server", "coordinator", "coordinator-ca"):
        certificate = x509.load_pem_x509_certificate((authority.folder / f"{name}.pem").read_bytes())
        # A board without a clock thinks it is 1970.
        assert certificate.not_valid_before_utc.year <= 1970
        assert certificate.not_valid_after_utc > now + datetime.timedelta(days=365)
    revoked = x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes())
    assert revoked.next_update_utc is not None
    assert revoked.last_update_utc < now < revoked.next_update_utc


@pytest.mark.mosquitto
@pytest.mark.parametrize("years", [-56, 10])
def test_a_list_written_while_the_clock_was_wrong_locks_nobody_out(
    secured: Authority, years: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = make_member(secured, "pi-01", tmp_path / "pi-01").tls
    with monkeypatch.context() as patch, secured.ledger() as ledger:
        set_clock(years, patch)
        secured.write_lists(ledger)
    assert mosquitto.reload(secured.folder)
    for _ in range(5):  # the broker reads its lists in a moment
        time.sleep(0.1)
        link = Link("127.0.0.1", secured.settings.port, identity="pi-01", tls=tls)
        try:
            link.open(LIMIT_S)
        except LinkError as error:
            pytest.fail(str(error))
        link.close()


def test_a_token_made_by_a_clock_that_was_ahead_is_not_good_for_years(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        set_clock(3, patch)
        token = authority.invite("pi-01").token
    assert token is not None
    request = EnrolRequest(device="pi-01", token=token, csr=make_csr(certificates.new_key(), "pi-01"), reply="ab" * 16)
    with authority.ledger() as ledger:
        reply = answer(authority, ledger, request, now_s=time.time())
    assert isinstance(reply, NotEnrolled)
    assert "clock was ahead" in reply.reason


def test_a_member_that_enrols_again_after_the_clock_was_set_back_is_a_member(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        set_clock(3, patch)
        with authority.ledger() as ledger:
            token, _ = ledger.issue_token("pi-01")
            assert ledger.enrol(token, key_sha256="a", certificate="c", serial=1, expires_at=9e9)
    make_member(authority, "pi-01", tmp_path / "again")
    with authority.ledger() as ledger:
        (member,) = ledger.members()
    assert member.revoked_at is None


def test_a_clock_that_jumps_in_mid_round_makes_no_device_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Store.create(tmp_path, name="r", fleet="f", rounds=3, dense_bytes=1, config="{}")) as store:
        store.open_round(1, base="m", base_nonzeros=1, learning_rate=0.1, cohort=("pi-01",))
        real = time.time
        monkeypatch.setattr("sparsyedge.coordinator.record.store.time.time", lambda: real() + 3 * YEAR_S)
        update = AcceptedUpdate(round=1, device="pi-01", samples=1, sha256="s", bytes=1, nonzeros=1)
        report = Report(
            run="r",
            round=1,
            phases={},
            energy_source="none",
            energy_kind="none",
            bytes_down=0,
            bytes_up=0,
            steps=1,
            loss=0.0,
            peak_rss_mb=1.0,
            pid=1,
        )
        store.accept_update(update, report)
        store.close_round(ClosedRound(round=1, model_id="n", seconds=40.0, global_sparsity=0.0, evaluation=None))
        assert patience_s(store.response_times()["pi-01"]) <= 80.0
