"""`sparsyedge edge enrol FILE`: turns the operator's file into this device's identity and config."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import msgspec

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import BrokerConfig, DataConfig, DeviceConfig
from sparsyedge.edge.config_paths import resolve_paths
from sparsyedge.edge.errors import FrameError, LinkError, SecurityError
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.finder import Finder
from sparsyedge.edge.protocol.messages import encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.enrolment_messages import (
    DeviceFile,
    Enrolled,
    EnrolReply,
    EnrolRequest,
    NotEnrolled,
    entry_reply,
    read_device_file,
    token_sha256,
    write_device_file,
)
from sparsyedge.edge.security.identity import Identity, make_csr
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.toml_text import toml_text

__all__ = ["enrol", "main", "make_parser"]

CONFIG_NAME = "device.toml"
DEFAULT_FOLDER = Path("~/.local/share/sparsyedge/identity")
ASK_AGAIN_S = 3.0
TICK_S = 0.5
KNOWN_S = 3.0
"""How long a broker may take to learn of a new token."""
KNOWN_TRIES = 3
"""How often it must refuse a token at least: on a busy machine, one refusal alone may take seconds."""

_REPLY_DECODER: msgspec.json.Decoder[EnrolReply] = msgspec.json.Decoder(EnrolReply)


def main(argv: list[str]) -> int:
    """Enrol this device, write its config if the file names its data, and remove the token from the file."""
    options = make_parser().parse_args(argv)
    folder = options.identity.expanduser().resolve()
    device = read_device_file(options.file)
    if device.token is None and _is_enrolled(folder, device.device):
        print(f"{device.device} is enrolled already, in {folder}")
    else:
        enrol(device, folder, timeout_s=options.timeout)
        print(f"{device.device} is enrolled, in {folder}")
    if device.token is not None:
        used = {"token": None, "token_until": None, "entry_certificate": None, "entry_key": None}
        write_device_file(options.file, msgspec.structs.replace(device, **used))
    if device.data is None:
        print(f'write a config with id = "{device.device}" and identity = "{folder}" for it')
    else:
        config = folder / CONFIG_NAME
        keys = _config(device, folder, _data(device.data, options.file), options.work_dir)
        write_atomically(config, toml_text(msgspec.to_builtins(keys)).encode())
        print(f"start it with: sparsyedge edge --config {config}")
    return 0


def enrol(device: DeviceFile, folder: Path, *, timeout_s: float) -> Identity:
    """Make the device's key, have it certified, and keep both in `folder`.

    Raises SecurityError if the coordinator refuses, LinkError if it is unreachable.
    """
    if device.token is None:
        raise SecurityError(
            f"the file of {device.device} has no token any more; make another with "
            f"`sparsyedge coordinator token {device.device}`"
        )
    identity = Identity(folder)
    key = identity.begin(ca=device.ca, signing_key=device.signing_key, token=device.token)
    # Newcomers are told apart only by client id, so it must be unguessable.
    hashed = token_sha256(device.token)
    nonce = secrets.token_hex(16) if device.entry_key is None else entry_reply(hashed)
    request = EnrolRequest(device=device.device, token=device.token, csr=make_csr(key, device.device), reply=nonce)
    # The broker admits only holders of a token: strangers cannot flood the coordinator.
    login = (device.device, hashed) if device.entry_key is None else None
    others = [(broker.host, broker.port) for broker in device.others]
    tls = identity.keep_entry(device.entry_certificate, device.entry_key)
    find = Finder(device.fleet, tls.ca, for_newcomers=True).look if device.find else None
    link = Link(device.host, device.enrol_port, identity=nonce, tls=tls, login=login, others=others, find=find)
    topics = Topics(device.fleet)
    link.subscribe(topics.enrol_reply(nonce))
    until_s = time.monotonic() + timeout_s
    _open(link, device.device, until_s=until_s)
    try:
        reply = _ask(link, topics.enrol_request(device.device), encode(request), until_s=until_s)
    finally:
        link.close()
    if isinstance(reply, NotEnrolled):
        raise SecurityError(f"the coordinator at {link.host} did not enrol {device.device}: {reply.reason}")
    identity.finish(reply.certificate, device=device.device)
    return identity


def _open(link: Link, device: str, *, until_s: float) -> None:
    """Connect; retries for a moment, because the broker may not know a brand-new token yet."""
    known_by_s, refusals = time.monotonic() + KNOWN_S, 0
    while True:
        try:
            link.open(max(TICK_S, until_s - time.monotonic()))
            return
        except LinkError as error:
            if not link.is_unknown:
                raise
            refusals += 1
            if refusals >= KNOWN_TRIES and time.monotonic() > known_by_s:
                raise SecurityError(
                    f"the broker at {link.host}:{link.port} does not know the token of {device}: it is void, or "
                    f"another device's; make one with `sparsyedge coordinator token {device}`"
                ) from error
        time.sleep(TICK_S)


def _ask(link: Link, topic: str, request: bytes, *, until_s: float) -> Enrolled | NotEnrolled:
    """Repeat the request until answered: any message may get lost."""
    ask_s = 0.0
    while (now_s := time.monotonic()) < until_s:
        if now_s >= ask_s:
            link.publish(topic, request, timeout_s=max(TICK_S, until_s - now_s))
            ask_s = now_s + ASK_AGAIN_S
        message = link.receive(TICK_S)
        if isinstance(message, Received):
            try:
                return _REPLY_DECODER.decode(message.payload)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise FrameError(f"the answer to the enrolment cannot be read: {error}") from error
    raise SecurityError(
        f"nobody answered at {link.host}:{link.port}: the broker is there, but neither `sparsyedge coordinator run` "
        f"nor `sparsyedge coordinator enrol` is; start one and try again"
    )


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge edge enrol", description="Make this machine a member of a secured fleet.")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="what `sparsyedge coordinator token` made for this device"
    )
    parser.add_argument(
        "--identity",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help=f"where to keep the identity ({DEFAULT_FOLDER})",
    )
    parser.add_argument("--work-dir", metavar="DIR", help="where the device keeps models and updates")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="how long to try")
    return parser


def _is_enrolled(folder: Path, device: str) -> bool:
    try:
        return Identity.open(folder).is_of(device)
    except SecurityError:
        return False


def _config(device: DeviceFile, folder: Path, data: DataConfig, work_dir: str | None) -> DeviceConfig:
    first = BrokerConfig(host=device.host, port=device.port)
    config = DeviceConfig(
        id=device.device,
        fleet=device.fleet,
        identity=str(folder),
        broker=(first, *device.others) if device.others else first,
        find_broker=device.find,
        data=data,
    )
    chosen = config.work_dir if work_dir is None else work_dir
    return msgspec.structs.replace(config, work_dir=str(Path(chosen).expanduser().resolve()))


def _data(data: DataConfig, file: Path) -> DataConfig:
    """The device's data config, with paths made absolute; the operator wrote them relative to the file."""
    return resolve_paths(data, file.absolute().parent)
