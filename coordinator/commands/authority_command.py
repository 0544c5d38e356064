"""`sparsyedge coordinator init`, `token`, `revoke`, `sign`, `page-token`, `broker` and more: a secured fleet."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import threading
import time
from pathlib import Path
from typing import NoReturn

import msgspec
from rich.console import Console
from rich.table import Table

from sparsyedge.coordinator.authority import mosquitto
from sparsyedge.coordinator.authority import op_libraries as libraries
from sparsyedge.coordinator.authority.authority import (
    CLUSTER_PORT,
    COORDINATOR_PORT,
    ENROL_PORT,
    MEMBER_PORT,
    Authority,
    Settings,
)
from sparsyedge.coordinator.authority.beacon import announcing
from sparsyedge.coordinator.authority.enrolment_service import serve
from sparsyedge.coordinator.authority.ledger import MAX_TOKEN_LIFE_S, MIN_TOKEN_LIFE_S, Ledger
from sparsyedge.coordinator.authority.page_access import make_page_token
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.coordinator.authority.rotation import read_rotation, settle
from sparsyedge.coordinator.authority.wheel_signing import sign_wheels
from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import DataConfig, PartitionConfig
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.protocol.messages import MAX_EPOCHS
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, write_device_file
from sparsyedge.edge.text import duration_s, duration_text

__all__ = ["COMMANDS", "add_commands", "main"]

COMMANDS = ("init", "token", "identities", "revoke", "library", "sign", "sign-wheels", "page-token", "enrol", "broker")
DEFAULT_FOLDER = Path("fleet")
NODES = 3


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommands of this file."""
    _add_init(commands)
    adders = (_add_token, _add_members, _add_signing, _add_library, _add_services)
    for command in (each for add in adders for each in add(commands)):
        command.add_argument(
            "--dir", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="the folder of `init` (default: ./fleet)"
        )


def _add_init(commands: argparse._SubParsersAction[Parser]) -> None:
    init = commands.add_parser("init", help="make a fleet's own authority and its broker's configuration")
    init.add_argument("dir", type=Path, metavar="DIR")
    init.add_argument(
        "--host",
        required=True,
        metavar="NAME[,IP]",
        help="what devices know the broker's machine by; of a cluster: three machines, or one for all nodes",
    )
    init.add_argument(
        "--broker",
        choices=("mosquitto", "nats"),
        default="mosquitto",
        help="one Mosquitto, or a cluster of NATS (default: %(default)s)",
    )
    init.add_argument("--fleet", default="default", metavar="NAME")
    init.add_argument("--bind", default="0.0.0.0", metavar="IP", help="the address that the broker listens at")
    init.add_argument("--port", type=int, default=MEMBER_PORT, help="for devices that are members")
    init.add_argument("--enrol-port", type=int, default=ENROL_PORT, help="for new devices")
    init.add_argument("--coordinator-port", type=int, default=COORDINATOR_PORT, help="for the coordinator, on loopback")
    init.add_argument(
        "--cluster-port", type=int, default=CLUSTER_PORT, help="for the nodes of a cluster among themselves"
    )
    init.add_argument("--no-announce", action="store_true", help="do not tell the local network of it (mDNS)")


def _add_token(commands: argparse._SubParsersAction[Parser]) -> tuple[Parser, ...]:
    token = commands.add_parser("token", help="let a new device in: a file for it, good for one enrolment")
    token.add_argument("device", metavar="DEVICE_ID")
    token.add_argument("--out", type=Path, metavar="FILE", help=f"default: {DEVICE_FILE_NAME}")
    token.add_argument(
        "--dataset", metavar="NAME", help="what the device trains on: a data set, or the path of an .npz"
    )
    token.add_argument("--data-dir", metavar="DIR", help="where the device finds it")
    token.add_argument(
        "--find", action="store_true", help="let the device look for the broker on its network if it does not answer"
    )
    token.add_argument("--share", metavar="INDEX/DEVICES", help="train on one LDA share of the data set, e.g. 0/4")
    token.add_argument(
        "--life",
        default="24h",
        metavar="TIME",
        help="how long the token is good, e.g. 12h or 30d (default: %(default)s)",
    )
    return (token,)


def _add_members(commands: argparse._SubParsersAction[Parser]) -> tuple[Parser, ...]:
    members = commands.add_parser("identities", help="show who may take part, and who was refused")
    members.add_argument("--json", action="store_true", help="print one JSON document")
    ban = commands.add_parser("revoke", help="shut a device out, also one that is connected")
    ban.add_argument("device", metavar="DEVICE_ID")
    return members, ban


def _add_signing(commands: argparse._SubParsersAction[Parser]) -> tuple[Parser, ...]:
    sign = commands.add_parser("sign", help="sign artifacts, as the devices of a secured fleet want them")
    sign.add_argument("artifacts", type=Path, nargs="?", metavar="ARTIFACTS")
    sign.add_argument(
        "--run",
        type=Path,
        metavar="RUN.toml",
        help="certify this run's key, for a coordinator that has no signing key, or once more; devices then refuse "
        "the certificates of earlier runs",
    )
    sign.add_argument(
        "--max-epochs", type=int, metavar="N", help="what devices train in one round at most (default: 1000)"
    )
    sign.add_argument(
        "--op-library",
        type=Path,
        action="append",
        default=[],
        metavar="WHEEL",
        help="one more wheel that devices install, beside the op library of this installation and those on record",
    )
    wheels = commands.add_parser("sign-wheels", help="sign the lists of a wheelhouse; `flash` does so by itself")
    wheels.add_argument("wheelhouse", type=Path, metavar="WHEELHOUSE")
    return sign, wheels


def _add_library(commands: argparse._SubParsersAction[Parser]) -> tuple[Parser, ...]:
    library = commands.add_parser("library", help="show or record which op libraries the devices of this fleet have")
    library.add_argument(
        "wheels", type=Path, nargs="*", metavar="WHEEL|WHEELHOUSE", help="what devices install; `flash` records its own"
    )
    library.add_argument("--forget", metavar="SHA256", help="take the one whose hash begins so off the record")
    return (library,)


def _add_services(commands: argparse._SubParsersAction[Parser]) -> tuple[Parser, ...]:
    page = commands.add_parser(
        "page-token", help="make a new token for the live page and print it once; the one before is void"
    )
    enrol = commands.add_parser("enrol", help="answer new devices while no run does")
    broker = commands.add_parser("broker", help="run the broker with the configuration that `init` made")
    broker.add_argument("--node", type=int, metavar="N", help="which node of a cluster, from 1 on")
    return page, enrol, broker


def main(arguments: argparse.Namespace) -> int:
    """Run one of the subcommands; raises SparsyedgeError for an expected failure."""
    if arguments.command == "init":
        return _init(arguments)
    authority = Authority.open(arguments.dir)
    match arguments.command:
        case "token":
            return _token(authority, arguments)
        case "identities":
            return _identities(authority, as_json=arguments.json)
        case "revoke":
            return _revoke(authority, arguments.device)
        case "library":
            return _library(authority, arguments.wheels, arguments.forget)
        case "sign":
            return _sign(authority, arguments)
        case "sign-wheels":
            return _sign_wheels(authority, arguments.wheelhouse)
        case "page-token":
            _say(_page_token(authority))
            return 0
        case "enrol":
            return _enrol(authority)
        case _:
            return _broker(authority, arguments.node)


def _broker(authority: Authority, node: int | None) -> NoReturn:
    if (rotation := read_rotation(authority.folder)) is not None and rotation.stage == "switching":
        # Certificates and keys may not match after a crash in the middle of it.
        settle(authority)
    if authority.cluster is not None:
        folder, command = authority.cluster.command(node)
        mosquitto.raise_file_limit()
        os.chdir(folder)
        os.execv(command[0], command)
    if node is not None:
        raise ConfigError(f"`--node` is {node}, but the broker of {authority.folder} is a Mosquitto; leave it out")
    binary = mosquitto.find()
    if not (authority.folder / mosquitto.CONFIGURATION_NAME).exists():
        authority.write_configuration()
    mosquitto.raise_file_limit()
    # Mosquitto replaces this process, so it gets our signals and we return its exit code.
    os.execv(binary, [binary, "-c", str(authority.folder.resolve() / mosquitto.CONFIGURATION_NAME)])


def _init(arguments: argparse.Namespace) -> int:
    values = {
        "hosts": [host.strip() for host in arguments.host.split(",") if host.strip()],
        "fleet": arguments.fleet,
        "bind": arguments.bind,
        "port": arguments.port,
        "enrol_port": arguments.enrol_port,
        "coordinator_port": arguments.coordinator_port,
    }
    if arguments.no_announce:
        values["announce"] = False
    if arguments.broker == "nats":
        values["nodes"] = _nodes(values["hosts"], arguments.port, arguments.cluster_port)
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot make an authority for {values}: {error}") from error
    if not _is_address(settings.bind):
        raise ConfigError(f"`--bind` is {settings.bind!r}; give an IP address, e.g. 0.0.0.0 for all of this machine's")
    ports = (settings.port, settings.enrol_port, settings.coordinator_port)
    if arguments.broker == "mosquitto" and len(set(ports)) < len(ports):
        raise ConfigError(f"the ports for members, new devices and the coordinator are {ports}; choose three different")
    authority = Authority.init(arguments.dir, settings)
    _say(f"authority of fleet {settings.fleet} in {authority.folder}: keep its .key files secret and backed up")
    _say(_page_token(authority))
    if authority.cluster is None:
        _say(f"start the broker: sparsyedge coordinator broker --dir {authority.folder}")
        return 0
    for number, node in enumerate(authority.cluster.nodes, start=1):
        command = f"sparsyedge coordinator broker --node {number} --dir {authority.folder}"
        _say(f"start node {number} at {node.host}, port {node.port}: {command}")
    _say(f"a node on another machine needs its folder in {authority.folder}/nodes there; see docs/how-to/cluster.md")
    return 0


def _page_token(authority: Authority) -> str:
    return f"token for the live page, shown this once: {make_page_token(authority.folder)}"


def _nodes(hosts: list[str], port: int, cluster_port: int) -> list[dict[str, object]]:
    """Where the nodes listen: one on each of three machines, or, to try it out, three on one."""
    if len(hosts) == 1:
        return [{"host": hosts[0], "port": port + n, "cluster_port": cluster_port + n} for n in range(NODES)]
    if len(hosts) != NODES or len(set(hosts)) < NODES:
        raise ConfigError(
            f"`--host` names {', '.join(hosts)}; `--broker nats` needs {NODES} machines, or one for all nodes"
        )
    return [{"host": host, "port": port, "cluster_port": cluster_port} for host in hosts]


def _token(authority: Authority, arguments: argparse.Namespace) -> int:
    path = arguments.out or Path(DEVICE_FILE_NAME)
    if arguments.find and authority.cluster is not None:
        raise ConfigError("`--find` is for one broker; the file of a device names the nodes of its cluster already")
    life_s = _token_life_s(arguments.life)
    device = authority.invite(arguments.device, data=_data(arguments), token_life_s=life_s)
    device = msgspec.structs.replace(device, find=arguments.find)
    try:
        write_device_file(path, device)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another `--out`") from error
    _say(f"{path}: lets {arguments.device} enrol once within {duration_text(life_s)}")
    _say(f"on the device: sparsyedge edge enrol {path.name}")
    return 0


def _token_life_s(text: str) -> float:
    seconds = duration_s(text)
    if seconds is None or not MIN_TOKEN_LIFE_S <= seconds <= MAX_TOKEN_LIFE_S:
        raise ConfigError(
            f"`--life` is {text!r}; allowed are {duration_text(MIN_TOKEN_LIFE_S)} to "
            f"{duration_text(MAX_TOKEN_LIFE_S)}, as a number with m, h, d or w, e.g. 30d"
        )
    return seconds


def _is_address(text: str) -> bool:
    """Whether the text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _data(arguments: argparse.Namespace) -> DataConfig | None:
    if arguments.dataset is None:
        if arguments.share or arguments.data_dir:
            raise ConfigError("`--share` and `--data-dir` say which part of a data set; add `--dataset`")
        return None
    share = None
    if arguments.share is not None:
        index, _, devices = arguments.share.partition("/")
        if not (index.isdecimal() and devices.isdecimal() and int(index) < int(devices)):
            raise ConfigError(
                f"`--share` is {arguments.share!r}; give INDEX/DEVICES with INDEX below DEVICES, e.g. 0/4"
            )
        share = PartitionConfig(devices=int(devices), index=int(index))
    return DataConfig(dataset=arguments.dataset, data_dir=arguments.data_dir, partition=share)


def _identities(authority: Authority, *, as_json: bool) -> int:
    with authority.ledger() as ledger:
        if as_json:
            print(msgspec.json.encode({"members": ledger.members(), "refusals": ledger.refusals()}).decode())
            return 0
        console = Console()
        console.print(_member_table(ledger))
        for refusal in ledger.refusals():
            line = f"refused {refusal.count}x from {refusal.device}: {refusal.reason}"
            console.print(line, highlight=False, markup=False)
    return 0


def _member_table(ledger: Ledger) -> Table:
    table = Table(title="Identities")
    for column in ("device", "enrolled", "valid until", "state"):
        table.add_column(column)
    for member in ledger.members():
        expired = member.expires_at < time.time()
        state = "revoked" if member.revoked_at is not None else "expired" if expired else "member"
        table.add_row(member.device, _day(member.issued_at), _day(member.expires_at), state)
    return table


def _revoke(authority: Authority, device: str) -> int:
    done = revoke(authority, device)
    _say(f"revoked {device}: {done.certificates} valid certificates until now, its tokens are void")
    if not done.reloaded and authority.cluster is not None:
        _say(
            "not every node runs on this machine: copy nodes/N/users.conf to where node N does, and there run "
            "`nats-server --signal reload=nats.pid` in its folder"
        )
    elif not done.reloaded:
        _say(
            f"no broker of {authority.folder} runs on this machine: copy crl.pem and members.acl to where it does, "
            f"and restart it there"
        )
    elif done.disconnected:
        _say("the broker has read the lists again and ended its connection")
    return 0


def _sign(authority: Authority, arguments: argparse.Namespace) -> int:
    limit = arguments.max_epochs
    if arguments.artifacts is None and (arguments.run is None or arguments.op_library or limit is not None):
        raise ConfigError("nothing says what to sign; give the folder of artifacts, or `--run RUN.toml`, or both")
    if limit is not None and not 1 <= limit <= MAX_EPOCHS:
        raise ConfigError(f"`--max-epochs` is {limit}; allowed are 1 to {MAX_EPOCHS}")
    if arguments.artifacts is not None:
        _sign_artifacts(authority, arguments.artifacts, arguments.op_library, max_epochs=limit)
    if arguments.run is not None:
        _certify(authority, arguments.run)
    return 0


def _certify(authority: Authority, run: Path) -> None:
    # Import here: it pulls in more than the other commands need.
    from sparsyedge.coordinator.config import load_run_config
    from sparsyedge.coordinator.fleet.run_key import CERTIFICATE_NAME, KEY_NAME, certify_run

    config = load_run_config(run)
    certificate = certify_run(authority, config)
    _say(f"certified the key of run {config.name} of fleet {config.fleet}, serial {certificate.serial}")
    _say(f"a coordinator on another machine needs {KEY_NAME} and {CERTIFICATE_NAME} of {config.run_path} there")


def _sign_artifacts(authority: Authority, artifacts: Path, libraries: list[Path], *, max_epochs: int | None) -> None:
    # Import here, as above.
    from sparsyedge.coordinator.authority.artifact_signing import sign

    signed = sign(authority, artifacts, libraries, max_epochs=max_epochs)
    listed = ", ".join(f"{library.platform} ({library.sha256[:12]}...)" for library in signed.manifest.op_libraries)
    _say(f"signed {artifacts} with key {authority.signing_key[:12]}..., for the op libraries of {listed}")
    if not any("aarch64" in library.platform for library in signed.manifest.op_libraries):
        _say(
            "note: none of them is for 64-bit ARM, so Raspberry Pis and phones will refuse these artifacts; "
            "`sparsyedge flash` records what it puts on cards, or run `sparsyedge coordinator library WHEEL "
            f"--dir {authority.folder}`, then sign again"
        )


def _sign_wheels(authority: Authority, wheelhouse: Path) -> int:
    for path in sign_wheels(authority, wheelhouse):
        _say(f"signed {path} with key {authority.signing_key[:12]}...: {path.name}.sig is beside it")
    return 0


def _library(authority: Authority, wheels: list[Path], forgotten: str | None) -> int:
    folder = authority.folder
    gone = [libraries.forget(folder, forgotten)] if forgotten is not None else []
    new = libraries.record(folder, wheels)
    for word, changed in (("forgotten", gone), ("recorded", new)):
        for library in changed:
            _say(f"{word}: {_described(library)}")
    if gone or new:
        _say(f"sign again, so that devices accept the artifacts: sparsyedge coordinator sign ARTIFACTS --dir {folder}")
    elif known := libraries.recorded(folder):
        for library in known:
            _say(f"on record: {_described(library)}")
    else:
        _say(f"no op library of a device is on record; add one: sparsyedge coordinator library WHEEL --dir {folder}")
    return 0


def _described(library: libraries.RecordedLibrary) -> str:
    return f"{library.platform} {library.sha256[:12]}... of {library.wheel}"


def _enrol(authority: Authority) -> int:
    logs.set_level("info")
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.set())
    _say(f"answering new devices of fleet {authority.settings.fleet}; end with Ctrl-C")
    with announcing(authority):
        serve(authority, stopped)
    return 0


def _day(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(unix_s))


def _say(line: str) -> None:
    print(line, flush=True)
