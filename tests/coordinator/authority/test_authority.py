"""The folder of `sparsyedge coordinator init`, tokens and certificates."""

from __future__ import annotations

import base64
import logging
import secrets
import stat
import time
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from fixtures.secured import make_authority, make_member

from sparsyedge.coordinator.authority.authority import Authority, Settings
from sparsyedge.coordinator.authority.enrolment_service import answer
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.edge.cli import main
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.enrolment_messages import (
    DeviceFile,
    Enrolled,
    EnrolReply,
    EnrolRequest,
    NotEnrolled,
    read_device_file,
)
from sparsyedge.edge.security.identity import Identity, make_csr

HOUR_S = 3600.0


def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def request_of(invited: DeviceFile, *, csr: str | None = None, device: str | None = None) -> EnrolRequest:
    assert invited.token is not None
    name = device or invited.device
    return EnrolRequest(device=name, token=invited.token, csr=csr or make_csr(key(), name), reply=secrets.token_hex(16))


def ask(authority: Authority, request: EnrolRequest, *, later_s: float = 0.0) -> EnrolReply | None:
    with authority.ledger() as ledger:
        return answer(authority, ledger, request, now_s=time.time() + later_s)


def counted(authority: Authority) -> dict[str, int]:
    with authority.ledger() as ledger:
        return {f"{refusal.device}: {refusal.reason}": refusal.count for refusal in ledger.refusals()}


def test_every_file_with_a_secret_in_it_is_readable_by_its_owner_alone(authority: Authority, tmp_path: Path) -> None:
    make_member(authority, "pi-01", tmp_path / "pi-01")
    secret = [*authority.folder.glob("*.key"), authority.folder / "authority.sqlite", tmp_path / "pi-01" / "device.key"]
    assert len(secret) == 6
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (authority.folder, tmp_path / "pi-01"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    private = [path for path in authority.folder.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert set(private) <= set(secret)


def test_an_authority_that_devices_trust_is_not_overwritten(authority: Authority) -> None:
    before = (authority.folder / "ca.pem").read_bytes()
    with pytest.raises(SecurityError, match="already holds an authority"):
        Authority.init(authority.folder, authority.settings)
    assert (authority.folder / "ca.pem").read_bytes() == before


def test_an_authority_that_is_not_there_is_named_with_the_way_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="coordinator init"):
        Authority.open(tmp_path)


@pytest.mark.parametrize("host", ["", "a b", "x\ny", "*", "-a", "a,b"])
def test_hosts_that_no_certificate_can_name_are_refused(host: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"hosts": [host]}, Settings)


@pytest.mark.parametrize("device", ["", "a/b", "a+b", "#", "@coordinator", ".hidden", "x" * 64, "a b", "a\nb", "é"])
def test_a_device_id_that_is_not_one_topic_level_is_refused(authority: Authority, device: str) -> None:
    with pytest.raises(SecurityError, match="cannot be a device's id"):
        authority.invite(device)


def test_a_token_is_stored_as_a_hash_only(authority: Authority) -> None:
    token = authority.invite("pi-01").token
    assert token is not None
    for path in authority.folder.iterdir():
        assert token.encode() not in path.read_bytes(), path


def test_a_good_token_makes_a_certificate_for_the_device_and_nothing_else(authority: Authority) -> None:
    reply = ask(authority, request_of(authority.invite("pi-01")))
    assert isinstance(reply, Enrolled)
    certificate = x509.load_pem_x509_certificate(reply.certificate.encode())
    assert certificate.subject.rfc4514_string() == "CN=pi-01"
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_stolen_token_serves_no_other_device(authority: Authority) -> None:
    authority.invite("pi-02")
    reply = ask(authority, request_of(authority.invite("pi-01"), device="pi-02"))
    assert isinstance(reply, NotEnrolled)
    assert "not one for this device" in reply.reason


def test_a_token_that_was_used_serves_no_other_key_but_repeats_a_lost_answer(authority: Authority) -> None:
    invited = authority.invite("pi-01")
    first = request_of(invited)
    reply = ask(authority, first)
    assert isinstance(reply, Enrolled)
    assert ask(authority, first) == reply
    again = ask(authority, request_of(invited))
    assert isinstance(again, NotEnrolled)
    assert "used already" in again.reason


def test_a_token_is_good_for_a_day(authority: Authority) -> None:
    invited = authority.invite("pi-01")
    late = ask(authority, request_of(invited), later_s=24.1 * HOUR_S)
    assert isinstance(late, NotEnrolled)
    assert "expired" in late.reason
    assert isinstance(ask(authority, request_of(invited), later_s=23.9 * HOUR_S), Enrolled)


def test_a_new_token_voids_the_one_before(authority: Authority) -> None:
    first = authority.invite("pi-01")
    authority.invite("pi-01")
    assert isinstance(ask(authority, request_of(first)), NotEnrolled)


def test_names_that_strangers_make_up_are_counted_as_one(authority: Authority) -> None:
    authority.invite("pi-01")
    with authority.ledger() as ledger:
        ledger.count_refusals({(f"made-up-{number}", "no"): 2 for number in range(5)} | {("pi-01", "no"): 1})
        ledger.count_refusals({("made-up-9", "no"): 1})
    assert counted(authority) == {"(unknown): no": 11, "pi-01: no": 1}


def csr_of(name: str, private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()


def csr_of_version_28(name: str) -> str:
    """Of a version that the library refuses with an error that is no ValueError."""
    der = base64.b64decode("".join(csr_of(name, key()).splitlines()[1:-1]))
    body = base64.encodebytes(der.replace(b"\x02\x01\x00", b"\x02\x01\x1c", 1)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"


@pytest.mark.parametrize(
    ("csr", "reason"),
    [
        ("rubbish", "cannot be read"),
        (csr_of_version_28("pi-01"), "cannot be read"),
        (csr_of("pi-02", key()), "another name"),
        (csr_of("@coordinator", key()), "another name"),
        (csr_of("pi-01", ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (csr_of("pi-01", rsa.generate_private_key(65537, 2048)), "P-256"),
    ],
)
def test_a_request_that_is_not_the_devices_own_is_refused_and_leaves_its_token_good(
    authority: Authority, csr: str, reason: str
) -> None:
    invited = authority.invite("pi-01")
    reply = ask(authority, request_of(invited, csr=csr))
    assert isinstance(reply, NotEnrolled)
    assert reason in reply.reason
    assert isinstance(ask(authority, request_of(invited)), Enrolled)


def test_a_certificate_of_another_authority_is_not_kept(authority: Authority, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    foreign = make_member(other, "pi-01", tmp_path / "foreign")
    invited = authority.invite("pi-01")
    identity = Identity(tmp_path / "pi-01")
    identity.begin(ca=invited.ca, signing_key=invited.signing_key, token=invited.token or "")
    with pytest.raises(SecurityError, match="not from the pinned authority"):
        identity.finish((foreign.folder / "device.pem").read_text(), device="pi-01")


def test_a_key_that_others_may_read_is_not_used(authority: Authority, tmp_path: Path) -> None:
    identity = make_member(authority, "pi-01", tmp_path / "pi-01")
    assert identity.is_of("pi-01")
    assert not identity.is_of("pi-02")
    (identity.folder / "device.key").chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        Identity.open(identity.folder)


def test_a_revoked_device_is_denied_until_it_is_invited_and_enrols_again(authority: Authority, tmp_path: Path) -> None:
    make_member(authority, "pi-01", tmp_path / "first")
    waiting = authority.invite("pi-02")
    assert revoke(authority, "pi-01").certificates == 1
    assert revoke(authority, "pi-02").certificates == 0
    assert "user pi-01\ntopic deny #" in (authority.folder / "members.acl").read_text()
    assert isinstance(ask(authority, request_of(waiting)), NotEnrolled)
    make_member(authority, "pi-01", tmp_path / "second")
    assert "deny" not in (authority.folder / "members.acl").read_text()
    revoked = x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes())
    old = x509.load_pem_x509_certificate((tmp_path / "first" / "device.pem").read_bytes())
    new = x509.load_pem_x509_certificate((tmp_path / "second" / "device.pem").read_bytes())
    assert revoked.get_revoked_certificate_by_serial_number(old.serial_number) is not None
    assert revoked.get_revoked_certificate_by_serial_number(new.serial_number) is None


def test_nobody_unknown_is_revoked(authority: Authority) -> None:
    with pytest.raises(SecurityError, match="no device"):
        revoke(authority, "pi-77")


def test_no_secret_is_logged(authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    invited = authority.invite("pi-01")
    ask(authority, request_of(invited, csr="rubbish"))
    ask(authority, request_of(invited), later_s=25 * HOUR_S)
    make_member(authority, "pi-02", tmp_path / "pi-02")
    revoke(authority, "pi-02")
    assert invited.token is not None
    assert invited.token not in caplog.text
    assert "PRIVATE" not in caplog.text


def test_a_token_is_good_for_as_long_as_was_chosen(authority: Authority) -> None:
    invited = authority.invite("pi-01", token_life_s=30 * 24 * HOUR_S)
    assert isinstance(ask(authority, request_of(invited), later_s=29 * 24 * HOUR_S), Enrolled)
    short = authority.invite("pi-02", token_life_s=HOUR_S)
    refused = ask(authority, request_of(short), later_s=2 * HOUR_S)
    assert isinstance(refused, NotEnrolled)
    assert "has expired" in refused.reason


def test_a_ledger_from_before_lives_were_chosen_keeps_its_tokens_for_a_day(authority: Authority) -> None:
    invited = authority.invite("pi-01")
    with authority.ledger() as ledger:
        ledger._db.execute("ALTER TABLE tokens DROP COLUMN life_s")
    assert isinstance(ask(authority, request_of(invited), later_s=23 * HOUR_S), Enrolled)


def test_the_life_of_a_token_is_chosen_on_the_command_line(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = ["coordinator", "token", "pi-01", "--dir", str(authority.folder), "--out", str(tmp_path / "pi-01.json")]
    assert main([*token, "--life", "30d"]) == 0
    assert "lets pi-01 enrol once within 30 days" in capsys.readouterr().out
    until = read_device_file(tmp_path / "pi-01.json").token_until
    assert until is not None
    assert abs(until - time.time() - 30 * 24 * HOUR_S) < HOUR_S
    for life in ("forever", "1m", "2000d", ""):
        assert main([*token, "--life", life]) == 2
        assert "allowed are 10 minutes to 365 days" in capsys.readouterr().err
