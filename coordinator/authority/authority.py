"""The folder that `sparsyedge coordinator init` creates: a fleet's authority, its keys and its broker's configuration.

    fleet.json                 the settings given at init: fleet, hosts, ports
    ca.pem, ca.key             the authority            server.pem, server.key   the broker's listeners
    coordinator.pem, .key      the coordinator          coordinator-ca.pem       its issuer, whose key is discarded
    signing.pub, signing.key   Ed25519, for artifacts and run keys
    crl.pem                    revoked certificates
    rotation.json, next/       the authority that replaces this one, and how far that is (rotation.py); meanwhile ca.pem
                               has the certificates of both, the present one's first
    page-token.sha256, page.pem, page.key   who may see the live page (page_access.py)
    authority.sqlite           hashes of tokens, certificates, run keys, refusals (ledger.py)
    mosquitto.conf, members.acl, newcomers.acl, coordinator.acl, newcomers.passwords
    nodes/1, nodes/2, nodes/3  instead of the line above, where the broker is a cluster (cluster.py)

Anyone who can read this folder controls the fleet, so only its owner may read the keys.
"""

from __future__ import annotations

import fcntl
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparsyedge.coordinator.authority import certificates, mosquitto, nats
from sparsyedge.coordinator.authority.cluster import LOCAL_NAMES, Cluster, Host, Node, keep_pair
from sparsyedge.coordinator.authority.ledger import BUSY_TIMEOUT_S, TOKEN_LIFE_S, Ledger
from sparsyedge.edge.config import MAX_BROKERS, BrokerConfig, DataConfig, Identifier, Port
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.security.enrolment_messages import DeviceFile, token_sha256
from sparsyedge.edge.security.identity import private_pem
from sparsyedge.edge.storage import write_atomically

__all__ = ["Authority", "Settings"]

SETTINGS_NAME = "fleet.json"
NEXT_NAME = "next"
LISTS_LOCK_NAME = "lists.lock"
MEMBER_PORT = 8883
ENROL_PORT = 8884
COORDINATOR_PORT = 8885
CLUSTER_PORT = 6222
DAY_S = 24 * 3600.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names, addresses and ports of a fleet's broker."""

    hosts: Annotated[tuple[Host, ...], msgspec.Meta(min_length=1)]
    """Names and addresses at which devices can reach the broker; new devices get the first."""
    fleet: Identifier = "default"
    bind: str = "0.0.0.0"
    port: Port = MEMBER_PORT
    enrol_port: Port = ENROL_PORT
    coordinator_port: Port = COORDINATOR_PORT
    nodes: Annotated[tuple[Node, ...], msgspec.Meta(min_length=3, max_length=MAX_BROKERS)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    """The nodes of a NATS cluster; without them, the broker is a Mosquitto."""
    announce: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether runs and `coordinator enrol` announce the broker by mDNS; if left out, they do beyond this machine."""


@dataclass(frozen=True)
class Authority:
    """A folder with an authority in it."""

    folder: Path
    settings: Settings

    @classmethod
    def init(cls, folder: Path, settings: Settings) -> Authority:
        """Create an authority with all its keys; raises SecurityError if the folder already holds one."""
        if (folder / "ca.key").exists():
            raise SecurityError(
                f"{folder} already holds an authority, which its devices trust; choose another folder, or "
                f"remove it and enrol every device again"
            )
        if settings.nodes is not msgspec.UNSET:
            nats.check_name(settings.fleet, "the name")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        except OSError as error:
            raise SecurityError(f"cannot make the folder {folder}: {error.strerror}; choose another") from error
        authority = cls(folder, settings)
        authority._make_keys()
        write_atomically(folder / SETTINGS_NAME, msgspec.json.format(msgspec.json.encode(settings), indent=2))
        authority.write_configuration()
        with authority.ledger() as ledger:
            authority.write_lists(ledger)
        return authority

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Open an existing authority; raises SecurityError if there is none."""
        path = folder / SETTINGS_NAME
        try:
            settings = msgspec.json.decode(path.read_bytes(), type=Settings)
        except FileNotFoundError as error:
            raise SecurityError(
                f"no authority in {folder}: it has no {SETTINGS_NAME}; make one with "
                f"`sparsyedge coordinator init {folder} --host NAME`"
            ) from error
        except (OSError, msgspec.DecodeError) as error:
            raise SecurityError(f"cannot read {path}: {error}; restore it from a backup") from error
        return cls(folder, settings)

    # ---- names and keys ----------------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Tls:
        """The coordinator's identity at the broker."""
        return Tls(self.folder / "ca.pem", self.folder / "coordinator.pem", self.folder / "coordinator.key")

    @property
    def cluster(self) -> Cluster | None:
        """The fleet's cluster of brokers; None if its broker is a Mosquitto."""
        settings = self.settings
        if settings.nodes is msgspec.UNSET:
            return None
        return Cluster(self.folder, settings.fleet, settings.bind, settings.nodes)

    def link(self, identity: str, will: tuple[str, bytes] | None = None) -> Channel:
        """Return a connection from the coordinator to its broker, not yet open."""
        if self.cluster is not None:
            # Another's client id ends a connection over NATS, whoever uses it.
            unguessable = f"{identity}-{secrets.token_hex(8)}"
            first, *others = ((node.host, node.port) for node in self.cluster.nodes)
            return Link(*first, identity=unguessable, will=will, tls=self.coordinator, others=others)
        return Link("127.0.0.1", self.settings.coordinator_port, identity=identity, will=will, tls=self.coordinator)

    @property
    def signing_key(self) -> str:
        """The Ed25519 public key, in hex, that devices pin."""
        return (self.folder / "signing.pub").read_text(encoding="ascii").strip()

    def private_signing_key(self) -> Ed25519PrivateKey:
        """The private key that signs artifacts."""
        key = serialization.load_pem_private_key((self.folder / "signing.key").read_bytes(), password=None)
        assert isinstance(key, Ed25519PrivateKey)
        return key

    @property
    def next(self) -> Path:
        """The folder of the authority that is to replace this one; it exists while that is under way."""
        return self.folder / NEXT_NAME

    def certificate(self, *, by_next: bool = False) -> x509.Certificate:
        """The certificate of the authority, or of the next one."""
        folder = self.next if by_next else self.folder
        return x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())

    def issue(
        self, public: ec.EllipticCurvePublicKey, name: str, *, days: float | None = None, by_next: bool = False
    ) -> x509.Certificate:
        """Issue a certificate that identifies the key's holder as `name` to the broker.

        `by_next` has the authority issue it that is to replace this one.
        """
        life = {} if days is None else {"days": days}
        mark = None if self.cluster is None else certificates.SERIAL
        issuer, key = self._pair(by_next=by_next)
        return certificates.issue_member(issuer, key, public, name=name, mark=mark, **life)

    def issue_page(self, public: ec.EllipticCurvePublicKey, hosts: Sequence[str]) -> x509.Certificate:
        """Issue a certificate for the live page at these names and addresses."""
        return certificates.issue_page(*self._pair(), public, hosts=hosts)

    @contextmanager
    def ledger(self, *, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[Ledger]:
        """Open the ledger for the block; raises StoreLocked if another process locks it for `timeout_s`."""
        with closing(Ledger(self.folder / "authority.sqlite", timeout_s=timeout_s)) as ledger:
            yield ledger

    def write_configuration(self) -> None:
        """Write the default broker configuration for these settings."""
        settings = self.settings
        if self.cluster is not None:
            self.cluster.write_configuration()
            return
        conf = mosquitto.configuration(
            self.folder,
            bind=settings.bind,
            port=settings.port,
            enrol_port=settings.enrol_port,
            coordinator_port=settings.coordinator_port,
        )
        write_atomically(self.folder / mosquitto.CONFIGURATION_NAME, conf.encode())

    def write_lists(self, ledger: Ledger) -> None:
        """Write the revocation, access and token lists; the broker sees them after a reload."""
        with self._writing_lists():
            if self.cluster is not None:
                self.cluster.write_users(ledger)
                return
            serials = ledger.revoked_serials()
            # Brokers want a list of every authority in ca.pem.
            pairs = [self._pair(), *([self._pair(by_next=True)] if (self.next / "ca.key").exists() else [])]
            lists = [certificates.revocation_list(issuer, key, serials) for issuer, key in pairs]
            write_atomically(self.folder / "crl.pem", b"".join(lists))
            for name, rules in mosquitto.access_lists(self.settings.fleet, ledger.denied()).items():
                # Newer versions of Mosquitto refuse an access list that other users can read.
                write_atomically(self.folder / name, rules.encode(), private=True)
            self._write_newcomers(ledger)

    def write_newcomers(self, ledger: Ledger) -> None:
        """Write only the token list; the broker sees it after a reload."""
        with self._writing_lists():
            self._write_newcomers(ledger)

    def reload(self, *, patience_s: float = mosquitto.PATIENCE_S) -> bool:
        """Make the broker reload its lists; returns False if it does not run here or cannot be signalled.

        Waits for a Mosquitto that is at work, `patience_s` at most before it is told and as long afterwards.
        """
        if self.cluster is not None:
            return self.cluster.reload()
        return mosquitto.reload(self.folder, patience_s=patience_s)

    def _write_newcomers(self, ledger: Ledger) -> None:
        if self.cluster is not None:
            self.cluster.write_users(ledger)
            return
        logins = "".join(mosquitto.login(device, sha256) for device, sha256 in ledger.token_hashes().items())
        write_atomically(self.folder / "newcomers.passwords", logins.encode(), private=True)

    @contextmanager
    def _writing_lists(self) -> Iterator[None]:
        """Lock out other writers from ledger to disk: no writer may overwrite a newer list with an older one."""
        with (self.folder / LISTS_LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # ---- new devices -------------------------------------------------------------------------------------------------

    def invite(self, device: str, *, data: DataConfig | None = None, token_life_s: float = TOKEN_LIFE_S) -> DeviceFile:
        """Make a new device's enrolment file with a fresh token; voids any earlier token of that device."""
        try:
            msgspec.convert(device, Identifier)
        except msgspec.ValidationError as error:
            raise SecurityError(
                f"{device!r} cannot be a device's id: allowed are 1 to 63 letters, digits, `_`, `.` and `-`, "
                f"beginning with a letter or a digit"
            ) from error
        if self.cluster is not None:
            nats.check_name(device, "a device")
        with self.ledger() as ledger:
            token, expires_at = ledger.issue_token(device, life_s=token_life_s)
            self.write_newcomers(ledger)
        self.reload()
        settings = self.settings
        return DeviceFile(
            version=1,
            device=device,
            fleet=settings.fleet,
            **self._places(device),
            **self._entry(token, days=token_life_s / DAY_S + 1),
            ca=certificates.certificate_pem(self.certificate()).decode(),
            signing_key=self.signing_key,
            token=token,
            token_until=int(expires_at),
            data=data,
        )

    def _places(self, device: str) -> dict[str, Any]:
        """Where the device finds the broker. The nodes of a cluster share the devices out among them."""
        settings = self.settings
        if self.cluster is None:
            return {"host": settings.hosts[0], "port": settings.port, "enrol_port": settings.enrol_port}
        nodes = self.cluster.nodes
        begin = int.from_bytes(hashlib.sha256(device.encode()).digest()[:4], "big") % len(nodes)
        first, *others = (*nodes[begin:], *nodes[:begin])
        more = tuple(BrokerConfig(host=node.host, port=node.port) for node in others)
        return {"host": first.host, "port": first.port, "enrol_port": first.port, "others": more}

    def _entry(self, token: str, *, days: float) -> dict[str, Any]:
        """The certificate and key that let a newcomer in where everybody needs one."""
        if self.cluster is None:
            return {}
        key = certificates.new_key()
        mark = nats.entry_mark(token_sha256(token))
        issuer, own = self._pair()
        issued = certificates.issue_member(issuer, own, key.public_key(), name=nats.ENTRY, days=days, mark=mark)
        return {
            "entry_certificate": certificates.certificate_pem(issued).decode(),
            "entry_key": private_pem(key).decode(),
        }

    # ---- inside ------------------------------------------------------------------------------------------------------

    def make_next(self, folder: Path, *, number: int) -> None:
        """Make the keys of an authority that can replace this one, in a folder of their own."""
        self._make_authority(folder, name=f"{self.settings.fleet} {number}")

    def _make_keys(self) -> None:
        self._make_coordinator()
        self._make_authority(self.folder, name=self.settings.fleet)

    def _make_authority(self, folder: Path, *, name: str) -> None:
        """Make an authority, a signing key, and the certificates that brokers show."""
        key = certificates.new_key()
        authority = certificates.make_authority(key, fleet=name)
        hosts = list(dict.fromkeys([*self.settings.hosts, *LOCAL_NAMES]))
        server = certificates.new_key()
        issued = certificates.issue_server(authority, key, server.public_key(), hosts=hosts)
        keep_pair(folder, "server", server, issued)
        write_atomically(folder / "ca.pem", certificates.certificate_pem(authority))
        if self.cluster is not None:
            self.cluster.make_server_keys(folder, authority, key)
            if folder == self.folder:
                self.cluster.make_route_keys()
                self.cluster.write_clients()
        signing = Ed25519PrivateKey.generate()
        private = signing.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_atomically(folder / "signing.key", private, private=True)
        write_atomically(folder / "signing.pub", f"{signing.public_key().public_bytes_raw().hex()}\n".encode())
        # Write the authority's own key last: if it is missing, init was interrupted and may run again.
        keep_pair(folder, "ca", key, authority)

    def _make_coordinator(self) -> None:
        """Certify the coordinator with a one-time authority; we discard its key, so it can certify nobody else."""
        key, own = certificates.new_key(), certificates.new_key()
        authority = certificates.make_authority(key, fleet=self.settings.fleet)
        issued = certificates.issue_member(
            authority, key, own.public_key(), name=mosquitto.COORDINATOR, days=certificates.AUTHORITY_DAYS
        )
        write_atomically(self.folder / "coordinator-ca.pem", certificates.certificate_pem(authority))
        keep_pair(self.folder, "coordinator", own, issued)

    def _pair(self, *, by_next: bool = False) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """The authority's certificate and key; raises SecurityError while another takes its place."""
        folder = self.next if by_next else self.folder
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        certificate = self.certificate(by_next=by_next)
        if certificate.public_key() != key.public_key():
            raise SecurityError(
                f"{folder / 'ca.pem'} is not the certificate of {folder / 'ca.key'}: the authority is being replaced; "
                f"try again, or run `sparsyedge coordinator rotate --status --dir {self.folder}`"
            )
        return certificate, key
