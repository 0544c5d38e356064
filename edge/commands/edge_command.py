"""`sparsyedge edge`: read the config, build the objects, run the agent."""

from __future__ import annotations

import itertools
import logging
import secrets
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import get_args

import msgspec

from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.command_table import Command
from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.config import DataConfig, DeviceConfig, broker_list, load_config
from sparsyedge.edge.data import Dataset, check_classes, form_of, load, share_out
from sparsyedge.edge.data.form import describe
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.courier import Courier, Member, last_word, offline_status
from sparsyedge.edge.device.energy import EnergyMeter, measure_idle, open_meter
from sparsyedge.edge.device.equipment import DeviceFiles, Equipment, LocalData, Power, Signing
from sparsyedge.edge.device.limits import Limits, read_vitals
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.errors import ConfigError, LinkError, SparsyedgeError
from sparsyedge.edge.protocol.broker_refusal import retry_delay_s
from sparsyedge.edge.protocol.messages import Offer, Topics
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.security.identity import Identity
from sparsyedge.edge.security.signature import update_statement
from sparsyedge.edge.security.trust import Trust
from sparsyedge.edge.storage import private_files, remove_leftovers, write_atomically
from sparsyedge.edge.training.session import Runtime
from sparsyedge.edge.training.session_holder import SessionHolder

__all__ = ["SUBCOMMANDS", "load_data", "main", "make_parser"]

log = logging.getLogger(__name__)

SUBCOMMANDS = {
    "enrol": Command("sparsyedge.edge.commands.enrol_command:main", "make this machine a member of a secured fleet")
}
WRITE_PROBE_NAME = "write-probe"
WRITE_PROBE_BYTES = 64 * 1024
LAST_WORD_S = 5.0
KNOWN_S = 5.0
KNOWN_TICK_S = 0.5
"""How long a device that cannot start tries to report it."""


def main(argv: list[str]) -> int:
    """Run one device until it is stopped or its run finishes; raises SparsyedgeError if it cannot start."""
    if argv and argv[0] in SUBCOMMANDS:
        return SUBCOMMANDS[argv[0]].run(argv[1:])
    options = make_parser().parse_args(argv)
    config = load_config(options.config, DeviceConfig)
    logs.set_level(options.log_level)
    logs.name_lines(config.id)
    try:
        holder = SessionHolder(threads=config.threads, runtime=options.runtime)
        dataset = load_data(config.data)
        meter = open_meter(config.meter)
        with private_files():
            _ready_work_dir(config)
    except (SparsyedgeError, OSError) as error:
        _leave_word(config, str(error))
        if isinstance(error, OSError):
            raise ConfigError(f"this device cannot start: {error}; check its disk and its config") from error
        raise
    log.info("%d samples of %s", len(dataset.train), dataset.name)
    for line in describe(form_of(dataset), dataset.train):
        log.info("%s", line)
    try:
        with private_files():
            _run(config, dataset, holder, meter=meter, until_finished=options.until_finished)
    finally:
        meter.stop()
    return 0


def load_data(config: DataConfig) -> Dataset:
    """This device's training data: the whole train part, or its share if the config names one. No test part."""
    data_dir = Path(config.data_dir) if config.data_dir is not None else None
    dataset = load(config.dataset, data_dir, train_only=True)
    train, share = dataset.train, config.partition
    if share is None:
        return dataset
    check_classes(dataset)
    if share.index >= share.devices:
        raise ConfigError(
            f"key `data.partition.index` has value {share.index}, allowed are 0..{share.devices - 1} "
            f"for {share.devices} devices"
        )
    indices = share_out(train, share.devices, share.alpha, share.seed)[share.index]
    return replace(dataset, train=train.take(indices))


def make_parser() -> Parser:
    """The options of `sparsyedge edge`; `enrol` has its own parser."""
    parser = Parser(
        prog="sparsyedge edge",
        description="Run this machine as a device of a fleet.",
        epilog="`sparsyedge edge enrol FILE` makes it a member of a secured fleet first.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the device's config, device.toml")
    parser.add_argument(
        "--until-finished", action="store_true", help="exit when the run is finished instead of waiting for the next"
    )
    parser.add_argument(
        "--runtime",
        choices=get_args(Runtime),
        help="train with onnxruntime-training's API, or with any onnxruntime (default: what is installed)",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="how much to log"
    )
    return parser


def _leave_word(config: DeviceConfig, reason: str) -> None:
    """Tell the fleet why this device cannot start, if the broker is reachable: nobody may be watching its terminal."""
    member = _member(config, samples=0)
    try:
        link = _link(config, member, _open_identity(config))
        link.open(timeout_s=LAST_WORD_S)
        try:
            link.publish(member.topics.status(config.id), last_word(member, reason), retain=True, timeout_s=LAST_WORD_S)
        finally:
            link.close()
    except (SparsyedgeError, OSError) as error:
        log.warning("cannot tell the coordinator: %s", error)


def _member(config: DeviceConfig, *, samples: int) -> Member:
    return Member(
        device=config.id,
        topics=Topics(config.fleet),
        boot_id=uuid.uuid4().hex,
        software=own_software(),
        samples=samples,
    )


def _link(config: DeviceConfig, member: Member, identity: Identity | None) -> Link:
    first, *others = ((broker.host, broker.port) for broker in broker_list(config.broker))
    # The nodes of a cluster may not tie client ids to certificates: then another member could end our connection.
    unguessable = f"-{secrets.token_hex(8)}" if others else ""
    return Link(
        *first,
        others=others,
        identity=f"{config.fleet}-{config.id}{unguessable}",
        will=(member.topics.status(config.id), offline_status(member.boot_id)),
        tls=identity.tls if identity else None,
    )


def _run(
    config: DeviceConfig, dataset: Dataset, holder: SessionHolder, *, meter: EnergyMeter, until_finished: bool
) -> None:
    member = _member(config, samples=len(dataset.train))
    identity = _open_identity(config)
    link = _link(config, member, identity)
    work_dir = _work_dir(config)
    courier = Courier(link, member, trust=_trust(config, identity, work_dir))
    supervisor = Supervisor()
    equipment = Equipment(
        data=LocalData(dataset.train, dataset.names),
        files=DeviceFiles(work_dir),
        holder=holder,
        power=Power(meter, idle_w=_idle_watts(meter, config.idle_s)),
        signing=Signing(
            identity.signing_key if identity else None,
            sign=partial(_sign, config, identity),
            ca=identity.tls.ca if identity else None,
        ),
    )
    agent = Agent(
        courier,
        equipment,
        limits=Limits(config.limits, vitals=lambda: read_vitals(work_dir)),
        supervisor=supervisor,
        until_finished=until_finished,
    )
    # Subscribe before the link opens: by the first event, the broker knows our subscriptions.
    courier.join()
    _open(link, supervisor)
    supervisor.ready()
    log.info("joined fleet %s at %s:%d", config.fleet, link.host, link.port)
    try:
        with _stopped_by_signals(agent):
            agent.run()
    finally:
        link.close()


def _open(link: Link, supervisor: Supervisor) -> None:
    """Connect; raises LinkError on failure.

    A service that the broker refuses waits here: exiting would only make the supervisor restart it every few seconds.
    """
    for tries in itertools.count():
        try:
            _open_once(link)
            return
        except LinkError as error:
            if not (supervisor.is_there and link.is_refused):
                raise
            if tries == 0:
                log.error("%s", error)
                supervisor.ready()
            supervisor.status(str(error))
            until_s = time.monotonic() + retry_delay_s(tries)
            while time.monotonic() < until_s:
                supervisor.alive()
                time.sleep(1.0)


def _open_once(link: Link) -> None:
    """Connect; retries for a moment, because the nodes of a cluster may not know a brand-new certificate yet."""
    known_by_s = time.monotonic() + KNOWN_S
    while True:
        try:
            link.open()
            return
        except LinkError:
            if not link.is_unknown or time.monotonic() > known_by_s:
                raise
        time.sleep(KNOWN_TICK_S)


def _trust(config: DeviceConfig, identity: Identity | None, work_dir: Path) -> Trust | None:
    if identity is None:
        return None
    return Trust(identity.signing_key, fleet=config.fleet, path=work_dir / "trust.json")


def _sign(config: DeviceConfig, identity: Identity | None, offer: Offer) -> Offer:
    """The offer, signed if this device has an identity."""
    if identity is None:
        return offer
    statement = update_statement(offer, fleet=config.fleet, device=config.id)
    return msgspec.structs.replace(offer, signature=identity.sign(statement).hex())


def _work_dir(config: DeviceConfig) -> Path:
    # One folder per device: several devices on one machine can share the default.
    return Path(config.work_dir).expanduser() / config.fleet / config.id


def _ready_work_dir(config: DeviceConfig) -> None:
    """Make the folder and write to it: a full or read-only disk should fail now, not in mid-round."""
    folder = _work_dir(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        write_atomically(folder / WRITE_PROBE_NAME, bytes(WRITE_PROBE_BYTES))
        (folder / WRITE_PROBE_NAME).unlink()
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror or error}; free the disk, make it writable, or choose another "
            f"`work_dir`"
        ) from error


def _idle_watts(meter: EnergyMeter, seconds: float) -> float | None:
    idle_w = measure_idle(meter, seconds)
    if idle_w:
        log.info("idle power: %.2f W over %g s (%s, %s)", idle_w, seconds, meter.kind, meter.name)
    return idle_w


def _open_identity(config: DeviceConfig) -> Identity | None:
    if config.identity is None:
        return None
    identity = Identity.open(Path(config.identity).expanduser())
    if not identity.is_of(config.id):
        raise ConfigError(f"key `id` has value {config.id!r}, the identity in {identity.folder} is not that device's")
    return identity


@contextmanager
def _stopped_by_signals(agent: Agent) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop the agent cleanly; a second signal ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        log.info("got %s; stopping", signal.Signals(number).name)
        agent.stop()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
