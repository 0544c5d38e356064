"""A run's own key. The fleet's signing key certifies it, and it signs every task: devices accept no other tasks.

The coordinator makes the key when the run begins and keeps it with its certificate in the run directory. If the signing
key is on another machine, `sparsyedge coordinator sign --run RUN.toml` makes both there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.broker_access import open_authority
from sparsyedge.edge.errors import ConfigError, SecurityError
from sparsyedge.edge.protocol.messages import RoundTask, RunCertificate
from sparsyedge.edge.security.run_seal import certify, check_certificate, seal
from sparsyedge.edge.storage import write_atomically

__all__ = ["RunKey", "certify_run", "check_run_key", "open_run_key"]

log = logging.getLogger(__name__)

KEY_NAME = "run.key"
CERTIFICATE_NAME = "run-certificate.json"


@dataclass
class RunKey:
    """Signs a run's tasks."""

    key: Ed25519PrivateKey
    certificate: RunCertificate
    authority: Authority | None = None
    run_dir: Path | None = None
    _known: str = ""
    """The fleet's signing key when we looked last."""

    def follow_authority(self) -> bool:
        """Have the fleet's new signing key certify this run, if there is one since; returns whether that was so.

        The serial stays, so devices go on where they are. They trust both keys at that time.
        """
        if self.authority is None or self.run_dir is None:
            return False
        try:
            if (public := self.authority.signing_key) == self._known:
                return False
            signing_key = self.authority.private_signing_key()
        except OSError as error:
            log.debug("the fleet's signing key cannot be read (%s); this run keeps its certificate", error)
            return False
        if signing_key.public_key().public_bytes_raw().hex() != public:
            return False  # it is being replaced right now
        self._known = public
        if _is_by(self.certificate, public):
            return False
        before = self.certificate
        self.certificate = certify(
            before.key, fleet=before.fleet, run=before.run, serial=before.serial, signing_key=signing_key
        )
        _write_certificate(self.run_dir, self.certificate)
        log.info("run %s is certified by the fleet's new key %s... from now on", before.run, public[:12])
        return True

    def seal(self, task: RoundTask) -> RoundTask:
        """Sign a task and attach the run's certificate."""
        return seal(msgspec.structs.replace(task, certificate=self.certificate), self.key)


def open_run_key(config: RunConfig, *, is_new: bool) -> RunKey | None:
    """Open the run's key with a certificate that devices accept; None without an authority.

    If devices would refuse the present certificate, this makes a new one with the signing key, or raises SecurityError
    if that key is not here. `is_new` means that the run has no rounds yet.
    """
    authority = open_authority(config)
    if authority is None:
        return None
    certificate = _usable_certificate(authority, config, is_new=is_new) or certify_run(authority, config)
    with authority.ledger() as ledger:
        ledger.note_led(certificate.serial, run=certificate.run, key=certificate.key)
    return RunKey(_load_key(config.run_path), certificate, authority, config.run_path)


def check_run_key(config: RunConfig, *, is_new: bool) -> None:
    """Raise SecurityError if `open_run_key` would; writes nothing."""
    authority = open_authority(config)
    if authority is not None and _usable_certificate(authority, config, is_new=is_new) is None:
        _signing_key(authority, config)


def certify_run(authority: Authority, config: RunConfig) -> RunCertificate:
    """Certify the run's key, making one if needed; voids the fleet's earlier certificates."""
    if authority.settings.fleet != config.fleet:
        raise ConfigError(
            f"run {config.name} is of fleet {config.fleet!r}, the authority in {authority.folder} of fleet "
            f"{authority.settings.fleet!r}; name the other folder with `--dir`"
        )
    signing_key = _signing_key(authority, config)
    if not (config.run_path / KEY_NAME).exists():
        _make_key(config.run_path)
    public = _load_key(config.run_path).public_key().public_bytes_raw().hex()
    with authority.ledger() as ledger:
        serial = ledger.next_run_serial(config.name, public)
    certificate = certify(public, fleet=config.fleet, run=config.name, serial=serial, signing_key=signing_key)
    _write_certificate(config.run_path, certificate)
    return certificate


def _write_certificate(run_dir: Path, certificate: RunCertificate) -> None:
    content = msgspec.json.format(msgspec.json.encode(certificate), indent=2) + b"\n"
    write_atomically(run_dir / CERTIFICATE_NAME, content)


def _is_by(certificate: RunCertificate, signing_key: str) -> bool:
    try:
        check_certificate(certificate, fleet=certificate.fleet, signing_key=signing_key)
    except SecurityError:
        return False
    return True


def _usable_certificate(authority: Authority, config: RunConfig, *, is_new: bool) -> RunCertificate | None:
    """The certificate in the run directory, unless devices would refuse it."""
    try:
        content = (config.run_path / CERTIFICATE_NAME).read_bytes()
        certificate = msgspec.json.decode(content, type=RunCertificate)
        check_certificate(certificate, fleet=config.fleet, signing_key=authority.signing_key)
        key = _load_key(config.run_path).public_key().public_bytes_raw().hex()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, SecurityError):
        return None
    with authority.ledger() as ledger:
        last = ledger.last_led()
    # Devices remember the last round they saw under a certificate, so a run that starts over needs a new one.
    is_seen = certificate.serial < last or (is_new and certificate.serial == last)
    return certificate if (certificate.run, certificate.key) == (config.name, key) and not is_seen else None


def _signing_key(authority: Authority, config: RunConfig) -> Ed25519PrivateKey:
    try:
        return authority.private_signing_key()
    except OSError as error:
        raise SecurityError(
            f"run {config.name} has no certificate that devices accept, and {authority.folder / 'signing.key'} "
            f"cannot be read ({error.strerror}); run `sparsyedge coordinator sign --run RUN.toml` on the machine that "
            f"has the signing key, and copy {KEY_NAME} and {CERTIFICATE_NAME} to {config.run_path}"
        ) from error


def _make_key(run_dir: Path) -> None:
    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        write_atomically(run_dir / KEY_NAME, private, private=True)
    except OSError as error:
        raise SecurityError(f"cannot write {run_dir / KEY_NAME}: {error.strerror}; choose another `run_dir`") from error


def _load_key(run_dir: Path) -> Ed25519PrivateKey:
    path = run_dir / KEY_NAME
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SecurityError(f"cannot read the key {path}: {error}; remove it and start again") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SecurityError(f"{path} is not the key of a run; remove it and start again")
    return key
