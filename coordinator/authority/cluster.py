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

__all__ = ["Cluster", "Host", "Node", "keep_pair"]

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

    def make_server_keys(self, folder: Path, authority: x509.Certificate, key: certificates.Key) -> None:
        """Certify every node for devices, in the nodes' folders below `folder`."""
        for number, node in enumerate(self.nodes, start=1):
            server = certificates.new_key()
            issued = certificates.issue_server(authority, key, server.public_key(), hosts=_hosts(node))
            keep_pair(_made(node_folder(folder, number)), "server", server, issued)

    def make_route_keys(self) -> None:
        """Certify every node for the other nodes, by a one-time authority whose key is discarded."""
        key = certificates.new_key()
        routes = certificates.make_authority(key, fleet=self.fleet)
        for number, node in enumerate(self.nodes, start=1):
            route, folder = certificates.new_key(), _made(node_folder(self.folder, number))
            keep_pair(
                folder, "route", route, certificates.issue_peer(routes, key, route.public_key(), hosts=_hosts(node))
            )
            write_atomically(folder / "routes-ca.pem", certificates.certificate_pem(routes))

    def write_clients(self) -> None:
        """Write for every node whose certificates it takes."""
        clients = b"".join((self.folder / f"{name}.pem").read_bytes() for name in ("ca", "coordinator-ca"))
        for number in range(1, len(self.nodes) + 1):
            write_atomically(node_folder(self.folder, number) / "clients-ca.pem", clients)

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
        members = [nats.member(self.fleet, device, serial) for device, serial in ledger.valid_serials()]
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


def _hosts(node: Node) -> list[str]:
    return list(dict.fromkeys([node.host, *LOCAL_NAMES]))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def keep_pair(folder: Path, name: str, key: certificates.Key, certificate: x509.Certificate) -> None:
    """Write a certificate and its key, which only the owner can read."""
    write_atomically(folder / f"{name}.pem", certificates.certificate_pem(certificate))
    write_atomically(folder / f"{name}.key", private_pem(key), private=True)
