"""Mosquitto for a secured fleet: its configuration and access lists as text, and how it is run and reloaded."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.messages import MAX_CHUNK_BYTES, Topics

__all__ = ["access_lists", "configuration", "find", "reload"]

COORDINATOR = "@coordinator"
"""The name of the coordinator's certificate. No device can have it: an id begins with a letter or a digit."""

CONFIGURATION_NAME = "mosquitto.conf"
PID_NAME = "mosquitto.pid"
MAX_PACKET_BYTES = MAX_CHUNK_BYTES + 64 * 1024
MAX_QUEUED_MESSAGES = 200_000
"""Mosquitto drops silently beyond it, and its own default of 1000 lost three chunks of four of 200 devices."""
MAX_QUEUED_BYTES = 512 << 20
"""Twice what a coordinator has granted at any time: only who sends what nobody asked for comes near it."""
MEMORY_LIMIT_BYTES = 2 << 30
"""Beyond it Mosquitto refuses messages: whatever members do, the machine of the coordinator goes on."""
MAX_NEWCOMERS = 64
# Debian installs it where only root's PATH looks.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def configuration(folder: Path, *, bind: str, port: int, enrol_port: int, coordinator_port: int) -> str:
    """mosquitto.conf: listeners for members, for newcomers and for the coordinator, and nothing in the clear."""
    folder = folder.resolve()
    server = f"certfile {folder}/server.pem\nkeyfile {folder}/server.key\ntls_version tlsv1.2"
    return f"""\
# Made by `sparsyedge coordinator init`.
per_listener_settings true
user {getpass.getuser()}
pid_file {folder}/{PID_NAME}
log_dest stderr
log_type error
log_type warning
log_type notice
# Coordinator and devices say again what a restarted broker has forgotten, and so nothing of theirs is on its disk.
persistence false
max_packet_size {MAX_PACKET_BYTES}
max_queued_messages {MAX_QUEUED_MESSAGES}
max_queued_bytes {MAX_QUEUED_BYTES}
memory_limit {MEMORY_LIMIT_BYTES}
max_inflight_messages 20
set_tcp_nodelay true

# Members: who they are is what their certificate says, whatever they claim. One connection each, the newest.
listener {port} {bind}
{server}
cafile {folder}/ca.pem
crlfile {folder}/crl.pem
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {folder}/members.acl

# Newcomers: they know the server by its certificate, and show their token to the coordinator.
listener {enrol_port} {bind}
{server}
cafile {folder}/ca.pem
require_certificate false
allow_anonymous true
max_connections {MAX_NEWCOMERS}
acl_file {folder}/newcomers.acl

# The coordinator, from this machine alone, with several connections; no device's certificate is taken here.
listener {coordinator_port} 127.0.0.1
{server}
cafile {folder}/coordinator-ca.pem
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file {folder}/coordinator.acl
"""


def access_lists(fleet: str, denied: Iterable[str]) -> dict[str, str]:
    """Who may do what, by file. A device writes below its own name, and reads its answers and what is for all.

    A newcomer may ask, and read the answer to its own connection.
    """
    topics, own = Topics(fleet), "%u"
    # Mosquitto looks at a user's own lines before the patterns.
    bans = "".join(f"user {device}\ntopic deny #\n\n" for device in denied)
    members = f"""\
{bans}pattern read {topics.round}
pattern read {topics.chunk("+", "+")}
pattern read {topics.reply(own)}
pattern write {topics.status(own)}
pattern write {topics.offer(own)}
pattern write {topics.report(own)}
pattern write {topics.upload(own, "+", "+")}
"""
    return {
        "members.acl": members,
        "newcomers.acl": f"topic write {topics.enrol_request}\npattern read {topics.enrol_reply('%c')}\n",
        "coordinator.acl": f"user {COORDINATOR}\ntopic readwrite {topics.root}/#\n",
    }


def find() -> str:
    """Where Mosquitto is; raises SecurityError where it is not installed."""
    binary = shutil.which("mosquitto", path=SEARCH_PATH)
    if binary is None:
        raise SecurityError("no Mosquitto on the PATH; install it with: sudo apt-get install mosquitto")
    return binary


def reload(folder: Path) -> bool:
    """Have the broker of this folder read its lists again; False where none runs on this machine."""
    try:
        pid = int((folder / PID_NAME).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    # A pid file may be left over from a broker that was killed, and its number given to somebody else.
    ours = os.fsencode(folder.resolve() / CONFIGURATION_NAME)
    if not any(os.fsencode(Path(os.fsdecode(word)).resolve()) == ours for word in command if word):
        return False
    os.kill(pid, signal.SIGHUP)
    return True
