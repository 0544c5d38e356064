"""The nodes of a fleet's NATS cluster: their keys, configurations and list of users, and telling them of changes."""

from __future__ import annotations

import logging
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509

from sparsyedge.coordinator.authority import certificates, nats
from sparsyedge.coordinator.authority.ledger import Ledger
from sparsyedge.coordinator.authority.nats import User, node_folder
from sparsyedge.edge.config import Port
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.enrolment_messages import entry_reply
from sparsyedge.edge.security.identity import private_pem
from sparsyedge.edge.storage import write_atomically

__all__ = ["Cluster", "Host", "Node"]

log = logging.getLogger(__name__)

Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?\Z")]

PAST_NAME = "users-past.json"
HOOK_NAME = "reload-nodes"
"""A program of the operator's that brings the lists to nodes on other machines."""
HOOK_LIMIT_S = 60.0
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where one node listens."""

    host: Host
    port: Port
    """For devices and the coordinator, who speak MQTT."""
    cluster_port: Port
    """For the other nodes."""


@dataclass(frozen=True)
class Cluster:
    """The cluster of an authority's folder."""

    folder: Path
    fleet: str
    bind: str
    nodes: tuple[Node, ...]

    def make_keys(self, authority: x509.Certificate, key: certificates.Key) -> None:
        """Certify every node for devices, and for the other nodes by a one-time authority whose key is discarded."""
        routes_key = certificates.new_key()
        routes = certificates.make_authority(routes_key, fleet=self.fleet)
        clients = [(self.folder / f"{name}.pem").read_bytes() for name in ("ca", "coordinator-ca")]
        for number, node in enumerate(self.nodes, start=1):
            folder = node_folder(self.folder, number)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            hosts = list(dict.fromkeys([node.host, *LOCAL_NAMES]))
            server, route = certificates.new_key(), certificates.new_key()
            _keep(folder, "server", server, certificates.issue_server(authority, key, server.public_key(), hosts=hosts))
            peer = certificates.issue_peer(routes, routes_key, route.public_key(), hosts=hosts)
            _keep(folder, "route", route, peer)
            write_atomically(folder / "clients-ca.pem", b"".join(clients))
            write_atomically(folder / "routes-ca.pem", certificates.certificate_pem(routes))

    def write_configuration(self) -> None:
        """Write every node's configuration."""
        for number, node in enumerate(self.nodes, start=1):
            text = nats.configuration(
                number=number,
                fleet=self.fleet,
                bind=self.bind,
                port=node.port,
                cluster_port=node.cluster_port,
                routes=[(other.host, other.cluster_port) for other in self.nodes if other != node],
            )
            write_atomically(node_folder(self.folder, number) / nats.CONFIGURATION_NAME, text.encode())

    def write_users(self, ledger: Ledger) -> None:
        """Write the list of users for every node; they see it after a reload. The caller has locked the lists."""
        users = {user.name: user for user in self._users(ledger)}
        path = self.folder / PAST_NAME
        past = msgspec.json.decode(path.read_bytes(), type=dict[str, User]) if path.exists() else {}
        known = {**past, **users}
        if known != past:
            write_atomically(path, msgspec.json.encode(known), private=True)
        gone = [user for name, user in known.items() if name not in users]
        content = nats.user_list(users.values(), gone).encode()
        for number in range(1, len(self.nodes) + 1):
            write_atomically(node_folder(self.folder, number) / nats.USERS_NAME, content, private=True)

    def _users(self, ledger: Ledger) -> list[User]:
        newcomers = [
            nats.newcomer(self.fleet, device, mark=nats.entry_mark(sha256), reply=entry_reply(sha256))
            for device, sha256 in ledger.token_hashes().items()
        ]
        members = [nats.member(self.fleet, device, serial) for device, serial in ledger.valid_serials().items()]
        return [nats.coordinator(self.fleet), *members, *newcomers]

    def reload(self) -> bool:
        """Make all nodes read their lists again; returns False if one does not run here and no hook brings it there."""
        here = [nats.reload(node_folder(self.folder, number)) for number in range(1, len(self.nodes) + 1)]
        hook = self.folder / HOOK_NAME
        if not hook.exists():
            return all(here)
        try:
            subprocess.run(
                [str(hook.resolve())], cwd=self.folder, stdin=subprocess.DEVNULL, timeout=HOOK_LIMIT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the lists were not brought to other nodes: %s", error)
            return False
        return True

    def command(self, number: int | None) -> tuple[Path, list[str]]:
        """The folder and the command that start a node here; raises SecurityError if there is no such node."""
        if number is None or not 1 <= number <= len(self.nodes):
            shown = "not given" if number is None else str(number)
            raise SecurityError(f"`--node` is {shown}; this fleet's cluster has the nodes 1 to {len(self.nodes)}")
        folder = node_folder(self.folder, number).resolve()
        return folder, [nats.find(), "-c", str(folder / nats.CONFIGURATION_NAME)]


def _keep(folder: Path, name: str, key: certificates.Key, certificate: x509.Certificate) -> None:
    write_atomically(folder / f"{name}.pem", certificates.certificate_pem(certificate))
    write_atomically(folder / f"{name}.key", private_pem(key), private=True)
