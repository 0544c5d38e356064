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
from collections.abc import Callable, Iterable
from pathlib import Path

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import MAX_CHUNK_BYTES
from sparsyedge.edge.protocol.topics import Topics

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
POLL_S = 0.005
PATIENCE_S = 5.0
"""How long to wait for a broker that is at work, once before and once after it is told to read its lists."""
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
pattern read {topics.renewal_reply(own)}
pattern read {topics.release}
pattern read {topics.authority}
pattern read {topics.order(own)}
pattern write {topics.status(own)}
pattern write {topics.progress(own)}
pattern write {topics.offer(own)}
pattern write {topics.report(own)}
pattern write {topics.renewal_request(own)}
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


def reload(folder: Path, *, patience_s: float = PATIENCE_S) -> bool:
    """Make this folder's broker reload its lists, and wait until it has; False if it does not run or hear us here.

    A broker with too much to do may read them only after `patience_s`.
    """
    try:
        pid = int((folder / PID_NAME).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    # A killed broker leaves its pid file behind, and another process may have that pid by now.
    ours = os.fsencode(folder.resolve() / CONFIGURATION_NAME)
    if not any(os.fsencode(Path(os.fsdecode(word)).resolve()) == ours for word in command if word):
        return False
    if not _handles_reload(pid):
        return False
    # Mosquitto forgets a SIGHUP that comes while it reads its lists for an earlier one (seen with 2.0.11). Asleep,
    # it reads nothing, and whatever it reads from now on is new.
    if not _rests(pid, patience_s):
        log.debug("the broker is busy; it is told to read its lists all the same")
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        log.warning("the broker was not told to read its lists again: %s; run `kill -HUP %d` as its user", error, pid)
        return False
    _rests(pid, patience_s)
    return True


def _handles_reload(pid: int) -> bool:
    """Wait until the broker handles SIGHUP. It starts listening slightly earlier, and SIGHUP would kill it then."""
    return _wait_for(pid, lambda status: _has_hangup(status["SigCgt"]), HANDLER_S)


def _rests(pid: int, limit_s: float) -> bool:
    """Wait until the broker sleeps and no SIGHUP is due to it; False if it does not within the limit."""
    return _wait_for(pid, lambda status: status["State"].startswith("S") and not _has_hangup(status["ShdPnd"]), limit_s)


def _wait_for(pid: int, condition: Callable[[dict[str, str]], bool], limit_s: float) -> bool:
    """Wait until a process's status is as wanted; False if it is not within the limit, or the process has ended."""
    until_s = time.monotonic() + limit_s
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return False
        if condition({name: value.strip() for name, _, value in (line.partition(":") for line in lines)}):
            return True
        if time.monotonic() >= until_s:
            return False
        time.sleep(POLL_S)


def _has_hangup(signals: str) -> bool:
    """Whether SIGHUP is in a set of signals as /proc writes it."""
    return bool(int(signals, 16) >> (signal.SIGHUP - 1) & 1)
