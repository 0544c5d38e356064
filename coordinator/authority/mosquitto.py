"""Mosquitto for a secured fleet: writes its configuration and access lists as text, finds and reloads it."""

from __future__ import annotations

import base64
import getpass
import hashlib
import logging
import os
import resource
import secrets
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import MAX_CHUNK_BYTES, Topics

__all__ = ["access_lists", "configuration", "find", "login", "raise_file_limit", "reload"]

log = logging.getLogger(__name__)

COORDINATOR = "@coordinator"
"""The name of the coordinator's certificate. No device can have it: an id begins with a letter or a digit."""

CONFIGURATION_NAME = "mosquitto.conf"
PID_NAME = "mosquitto.pid"
MAX_PACKET_BYTES = MAX_CHUNK_BYTES + 64 * 1024
MAX_QUEUED_MESSAGES = 200_000
"""Mosquitto silently drops messages beyond this. Its default of 1000 lost three of four chunks with 200 devices."""
MAX_QUEUED_BYTES = 512 << 20
"""Twice the most that a coordinator grants at a time: only devices that send unrequested data come near it."""
MEMORY_LIMIT_BYTES = 2 << 30
"""Mosquitto refuses messages beyond this, so members cannot exhaust the memory of the coordinator's machine."""
MAX_NEWCOMERS = 256
"""Connections on the newcomers' listener. Each costs about 50 kB and a file descriptor that members need too."""
MAX_OPEN_FILES = 65_536
HANDLER_S = 5.0
CONNECTIONS_TOPIC = "$SYS/broker/load/connections/1min"
"""The broker's own count of connections opened in the last minute."""
# Debian installs Mosquitto in a folder that is only on root's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def configuration(folder: Path, *, bind: str, port: int, enrol_port: int, coordinator_port: int) -> str:
    """Return mosquitto.conf with one TLS listener each for members, newcomers and the coordinator."""
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
# Strangers could fill a disk with them.
connection_messages false

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

# Newcomers: they know the server by its certificate, and are let in by a token that is theirs.
listener {enrol_port} {bind}
{server}
cafile {folder}/ca.pem
require_certificate false
allow_anonymous false
password_file {folder}/newcomers.passwords
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
    """Return the access lists by file name.

    A device may write to its own topics, and read its replies and broadcasts. A newcomer may send requests under its
    own name, and read the replies to its own connection.
    """
    topics, own = Topics(fleet), "%u"
    # Mosquitto checks a user's own rules before the patterns.
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
        "newcomers.acl": f"pattern write {topics.enrol_request(own)}\npattern read {topics.enrol_reply('%c')}\n",
        "coordinator.acl": f"user {COORDINATOR}\ntopic readwrite {topics.root}/#\ntopic read {CONNECTIONS_TOPIC}\n",
    }


def login(name: str, password: str) -> str:
    """Return a line for a password file. One iteration is enough: our passwords are hashes of 256 random bits."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 1)
    return f"{name}:$7$1${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"


def raise_file_limit() -> None:
    """Raise the open-file limit (1024 in most shells) of this process and of the broker that it becomes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def find() -> str:
    """Return the path of Mosquitto; raises SecurityError if it is not installed."""
    binary = shutil.which("mosquitto", path=SEARCH_PATH)
    if binary is None:
        raise SecurityError("no Mosquitto on the PATH; install it with: sudo apt-get install mosquitto")
    return binary


def reload(folder: Path) -> bool:
    """Make this folder's broker reload its lists; returns False if it does not run here or cannot be signalled."""
    try:
        pid = int((folder / PID_NAME).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    # A killed broker leaves its pid file behind, and another process may have that pid by now.
    ours = os.fsencode(folder.resolve() / CONFIGURATION_NAME)
    if not any(os.fsencode(Path(os.fsdecode(word)).resolve()) == ours for word in command if word):
        return False
    if not _awaits_reload(pid):
        return False
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        log.warning("the broker was not told to read its lists again: %s; run `kill -HUP %d` as its user", error, pid)
        return False
    return True


def _awaits_reload(pid: int) -> bool:
    """Wait until the broker handles SIGHUP. It starts listening slightly earlier, and SIGHUP would kill it then."""
    until_s = time.monotonic() + HANDLER_S
    while time.monotonic() < until_s:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) >> (signal.SIGHUP - 1) & 1:
            return True
        time.sleep(0.01)
    return False
