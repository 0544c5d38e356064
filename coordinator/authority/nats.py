"""NATS for a secured fleet: a cluster's configuration and list of users as text; finds and reloads its nodes.

A node has one MQTT listener, and everybody shows a certificate there. NATS knows neither patterns with a user's name
nor revocation lists: it lets in whom `users.conf` lists, by the subject of the certificate. So each certificate has a
subject of its own, and the list is written again whenever somebody comes or goes.

Each node has a folder, `nodes/N`, with all that its machine needs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.authority.mosquitto import COORDINATOR, SEARCH_PATH
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import MAX_CHUNK_BYTES
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["User", "configuration", "find", "newcomer", "node_folder", "reload", "user_list"]

log = logging.getLogger(__name__)

CONFIGURATION_NAME = "nats.conf"
USERS_NAME = "users.conf"
PID_NAME = "nats.pid"
ENTRY = "@entry"
"""The name on certificates that are good for an enrolment alone."""
MAX_PAYLOAD_BYTES = MAX_CHUNK_BYTES + 64 * 1024
DELIVERIES = "$MQTT.sub.>"
"""Where a node hands a client what it subscribed to with QoS 1. No client can name these subjects itself."""


@dataclass(frozen=True)
class User:
    """Who may do what: topics, as MQTT writes them."""

    name: str
    """The subject of the certificate, as NATS writes it."""
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def subject_name(name: str, mark: str | None) -> str:
    """The subject of a certificate as NATS writes it; `mark` is its serial number attribute."""
    return f"CN={name}" if mark is None else f"SERIALNUMBER={mark},CN={name}"


def coordinator(fleet: str) -> User:
    root = f"{Topics(fleet).root}/#"
    return User(subject_name(COORDINATOR, None), (root,), (root,))


def member(fleet: str, device: str, mark: str) -> User:
    """A device: writes its own topics, reads its replies and what is for all."""
    topics = Topics(fleet)
    says = topics.status(device), topics.progress(device), topics.report(device), topics.renewal_request(device)
    sends = topics.offer(device), topics.upload(device, "+", "+")
    for_all = topics.round, topics.chunk("+", "+"), topics.release, topics.authority
    reads = (*for_all, topics.reply(device), topics.order(device), topics.renewal_reply(device))
    return User(subject_name(device, mark), says + sends, reads)


def newcomer(fleet: str, device: str, *, mark: str, reply: str) -> User:
    """The holder of a token: asks under its own name, and reads the reply to its own connection."""
    topics = Topics(fleet)
    return User(subject_name(ENTRY, mark), (topics.enrol_request(device),), (topics.enrol_reply(reply),))


def entry_mark(token_sha256: str) -> str:
    """What the certificate for an enrolment has in its subject: one per token."""
    return hashlib.sha256(f"entry {token_sha256}".encode()).hexdigest()[:32]


def configuration(
    *, number: int, fleet: str, bind: str, port: int, cluster_port: int, routes: Sequence[tuple[str, int]]
) -> str:
    """Return a node's configuration. Paths are relative to the node's folder, where it must be started."""
    listed = ", ".join(f'"tls://{_bracketed(host)}:{route_port}"' for host, route_port in routes)
    return f"""\
# Made by `sparsyedge coordinator init`. Start it in this folder: nats-server -c {CONFIGURATION_NAME}
server_name: "{fleet}-{number}"
pid_file: "{PID_NAME}"
max_payload: {MAX_PAYLOAD_BYTES}

# NATS insists on a port for its own protocol. Nobody gets in there: all users are for MQTT alone.
host: 127.0.0.1
port: -1
tls {{ {_tls("server", "clients-ca", "verify_and_map")} }}

# Retained messages and those on their way, on three disks.
jetstream {{ store_dir: "jetstream" }}

# Members, newcomers and the coordinator: who they are is what their certificate says.
mqtt {{
  host: "{bind}"
  port: {port}
  stream_replicas: 3
  # NATS takes these for 0 after a reload unless they are here, and then delivers nothing to open connections.
  ack_wait: "30s"
  max_ack_pending: 100
  consumer_memory_storage: true
  tls {{ {_tls("server", "clients-ca", "verify_and_map")} }}
}}

# The other nodes. Their authority certified them alone and its key is gone: no device's certificate is taken here.
cluster {{
  name: "{fleet}"
  listen: "{_bracketed(bind)}:{cluster_port}"
  routes: [{listed}]
  tls {{ {_tls("route", "routes-ca", "verify")} }}
}}

include "{USERS_NAME}"
"""


def _tls(own: str, authority: str, check: str) -> str:
    return f'cert_file: "{own}.pem", key_file: "{own}.key", ca_file: "{authority}.pem", {check}: true, timeout: 5'


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def user_list(users: Iterable[User], past: Iterable[User]) -> str:
    """Return users.conf: allow-lists only, since NATS up to 2.12 hands out retained messages past denials.

    Those of the past are listed as users of a kind of connection that no node offers. NATS 2.9 crashes when it reads a
    list without somebody whose retained message it has.
    """
    lines = [_user(user, "MQTT") for user in users] + [_user(user, "WEBSOCKET") for user in past]
    listed = "\n".join(lines)
    return f"""\
# Written by sparsyedge whenever a device comes or goes.
accounts {{ FLEET {{ jetstream: enabled, users: [
{listed}
] }} }}
"""


def _user(user: User, connection: str) -> str:
    publish, subscribe = _subjects(user.publish), _subjects(user.subscribe)
    permissions = {"publish": {"allow": publish}, "subscribe": {"allow": [*subscribe, DELIVERIES]}}
    # NATS reads JSON.
    return json.dumps({"user": user.name, "allowed_connection_types": [connection], "permissions": permissions})


def _subjects(topics: Sequence[str]) -> list[str]:
    """MQTT's patterns of topics as NATS's of subjects; MQTT's `a/#` covers `a` too."""
    parents = [topic.removesuffix("/#") for topic in topics if topic.endswith("/#")]
    return [topic.replace("/", ".").replace("+", "*").replace("#", ">") for topic in (*topics, *parents)]


def check_name(name: str, what: str) -> None:
    """Raise SecurityError for a name that cannot be part of a topic: NATS separates levels by dots."""
    if "." in name:
        raise SecurityError(
            f"{name!r} cannot be {what} of a fleet over NATS: a dot would be two levels of a topic there; use `-`"
        )


def find() -> str:
    """Return the path of nats-server; raises SecurityError if it is not installed."""
    binary = shutil.which("nats-server", path=SEARCH_PATH)
    if binary is None:
        raise SecurityError("no nats-server on the PATH; install it with: sudo apt-get install nats-server")
    return binary


def node_folder(folder: Path, number: int) -> Path:
    """Where node `number`, counted from 1, keeps its files."""
    return folder / "nodes" / str(number)


def reload(folder: Path) -> bool:
    """Make the node of this folder read its list again; returns False if it does not run here."""
    try:
        pid = int((folder / PID_NAME).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        place = Path(f"/proc/{pid}/cwd").resolve()
    except (OSError, ValueError):
        return False
    # A killed node leaves its pid file behind, and another process may have that pid by now.
    if place != folder.resolve() or not command[0].endswith(b"nats-server"):
        return False
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        log.warning("the node in %s was not told to read its list again: %s", folder, error)
        return False
    return True
