"""`sparsyedge edge`: read the config, build the objects, run the agent."""

from __future__ import annotations

import itertools
import logging
import platform
import secrets
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.broker_search import broker_places
from sparsyedge.edge.commands.command_table import Command
from sparsyedge.edge.commands.signals import on_signals
from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.config import DataConfig, DeviceConfig, load_config
from sparsyedge.edge.data import Dataset, check_classes, form_of, load, share_out
from sparsyedge.edge.data.form import describe
from sparsyedge.edge.data.loaders import open_source
from sparsyedge.edge.data.source import DataSource, FixedSource
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.board_sign import BoardSign
from sparsyedge.edge.device.courier import Courier, Member, last_word, offline_status
from sparsyedge.edge.device.energy import EnergyMeter, MeterSettings, measure_idle
from sparsyedge.edge.device.equipment import DeviceFiles, Equipment, Power, Signing
from sparsyedge.edge.device.evaluation import EvaluationDesk
from sparsyedge.edge.device.job_notices import JobNotices
from sparsyedge.edge.device.limits import Limits, read_vitals
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.device.meter_chain import open_chain
from sparsyedge.edge.device.model_keeper import ModelKeeper
from sparsyedge.edge.device.model_place import device_folder
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.device.renewal import Renewal
from sparsyedge.edge.device.succession_watch import SuccessionWatch
from sparsyedge.edge.errors import ConfigError, LinkError, SparsyedgeError
from sparsyedge.edge.heap import spare_memory
from sparsyedge.edge.protocol.broker_refusal import retry_delay_s
from sparsyedge.edge.protocol.device_settings import MAX_WORD, DeviceSettings
from sparsyedge.edge.protocol.messages import Offer, UpgradeStatus
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.identity import Identity
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.signature import update_statement
from sparsyedge.edge.security.trust import Trust
from sparsyedge.edge.storage import private_files, remove_leftovers, write_atomically
from sparsyedge.edge.training.session import Runtime
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.upgrade.launch import EXIT_SWITCHED
from sparsyedge.edge.upgrade.slots import Slots
from sparsyedge.edge.upgrade.upgrader import Settings, Upgrader

__all__ = ["SUBCOMMANDS", "load_data", "main", "make_parser"]

log = logging.getLogger(__name__)

SUBCOMMANDS = {
    "enrol": Command("sparsyedge.edge.commands.enrol_command:main", "make this machine a member of a secured fleet"),
    "predict": Command(
        "sparsyedge.edge.commands.device_predict_command:main", "ask this device's model about images and .npz files"
    ),
    "configure": Command("sparsyedge.edge.commands.configure_command:main", "change keys of a device's config"),
    "launcher": Command(
        "sparsyedge.edge.commands.launcher_command:main", "make this device ready for upgrades over the air"
    ),
}
WRITE_PROBE_NAME = "write-probe"
WRITE_PROBE_BYTES = 64 * 1024
LAST_WORD_S = 5.0
KNOWN_S = 5.0
KNOWN_TICK_S = 0.5
"""How long a device that cannot start tries to report it."""
NO_LAUNCHER = "it was not started by the launcher, so it could not go back; see `sparsyedge edge launcher`"


def main(argv: list[str]) -> int:
    """Run one device until it is stopped or its run finishes; raises SparsyedgeError if it cannot start."""
    if argv and argv[0] in SUBCOMMANDS:
        return SUBCOMMANDS[argv[0]].run(argv[1:])
    options = make_parser().parse_args(argv)
    config = load_config(options.config, DeviceConfig)
    logs.set_level(options.log_level)
    logs.name_lines(config.id)
    spare_memory()
    sign = BoardSign()
    sign.show("starting", f"{config.id} starts")
    try:
        holder = SessionHolder(threads=config.threads, runtime=options.runtime, rests=True)
        data = _open_data(config.data)
        meter = open_chain(config.meter, settings=MeterSettings(config.id, config.meters))
        with private_files():
            _ready_work_dir(config)
    except (SparsyedgeError, OSError) as error:
        sign.show("trouble", str(error))
        _leave_word(config, str(error))
        if isinstance(error, OSError):
            raise ConfigError(f"this device cannot start: {error}; check its disk and its config") from error
        raise
    _describe_data(config.data, data)
    try:
        with private_files():
            return _run(
                config,
                data,
                holder,
                meter=meter,
                sign=sign,
                until_finished=options.until_finished,
                source=options.config,
            )
    finally:
        meter.stop()


def _open_data(config: DataConfig) -> LocalData:
    """This device's data, which it follows as it grows; a share of a data set stays as it is."""
    if config.partition is not None:
        source: DataSource = FixedSource(load_data(config))
    else:
        source = open_source(config.dataset, Path(config.data_dir) if config.data_dir is not None else None)
    return LocalData.opened(source, min_samples=config.min_samples, tells_classes=config.tell_classes)


def _describe_data(config: DataConfig, data: LocalData) -> None:
    log.info("%d samples of %s", len(data), config.dataset)
    if (part := data.part) is not None:
        classes = len(part.names) or int(part.samples.y.max()) + 1
        if part.samples.task == "regression":
            classes = part.samples.y.shape[1]
        dataset = Dataset(config.dataset, part.samples, part.samples.none(), classes, part.names)
        for line in describe(form_of(dataset), part.samples):
            log.info("%s", line)


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
        epilog="`sparsyedge edge enrol FILE` makes it a member of a secured fleet first, `sparsyedge edge predict` "
        "asks the model that it has received, `sparsyedge edge configure` changes its config.",
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
        link = _link(config, member, _open_identity(config), supervisor=None)
        link.open(timeout_s=LAST_WORD_S)
        try:
            link.publish(member.topics.status(config.id), last_word(member, reason), retain=True, timeout_s=LAST_WORD_S)
        finally:
            link.close()
    except (SparsyedgeError, OSError) as error:
        log.warning("cannot tell the coordinator: %s", error)


def _member(config: DeviceConfig, *, samples: int, settings: DeviceSettings | UnsetType = UNSET) -> Member:
    return Member(
        device=config.id,
        topics=Topics(config.fleet),
        boot_id=uuid.uuid4().hex,
        software=own_software(),
        samples=samples,
        settings=settings,
    )


def _settings(config: DeviceConfig, holder: SessionHolder, meter: EnergyMeter) -> DeviceSettings:
    """What the fleet's operator may want to know of this device."""
    limits = config.limits
    return DeviceSettings(
        python=platform.python_version()[:MAX_WORD],
        machine=platform.machine()[:MAX_WORD],
        runtime=holder.runtime,
        threads=config.threads,
        meter=meter.name[:MAX_WORD],
        max_temperature_c=limits.max_temperature_c,
        min_battery_percent=limits.min_battery_percent,
        only_on_charger=limits.only_on_charger,
        wifi_only=limits.wifi_only,
        finds_broker=config.find_broker or not config.named_brokers,
    )


def _link(
    config: DeviceConfig,
    member: Member,
    identity: Identity | None,
    *,
    supervisor: Supervisor | None,
    sign: BoardSign | None = None,
) -> Link:
    """A link to the broker; if that has to be found first, waits until somebody announces it.

    Without a supervisor to tell, looks once.
    """
    (first, *others), find = broker_places(config, identity, supervisor, sign)
    # The nodes of a cluster may not tie client ids to certificates: then another member could end our connection.
    unguessable = f"-{secrets.token_hex(8)}" if others else ""
    return Link(
        *first,
        others=others,
        find=find,
        identity=f"{config.fleet}-{config.id}{unguessable}",
        will=(member.topics.status(config.id), offline_status(member.boot_id)),
        tls=identity.tls if identity else None,
    )


def _run(
    config: DeviceConfig,
    data: LocalData,
    holder: SessionHolder,
    *,
    meter: EnergyMeter,
    sign: BoardSign,
    until_finished: bool,
    source: Path,
) -> int:
    """Run the agent to its end and return the exit code; `source` is the config's file."""
    member = _member(config, samples=len(data), settings=_settings(config, holder, meter))
    identity = _open_identity(config)
    supervisor = Supervisor()
    link = _link(config, member, identity, supervisor=supervisor, sign=sign)
    work_dir = device_folder(config)
    keys = PinnedKeys(*identity.signing_keys) if identity else None
    courier = Courier(link, member, trust=_trust(config, keys, work_dir))
    equipment = Equipment(
        data=data,
        files=DeviceFiles(work_dir),
        holder=holder,
        power=Power(meter, idle_w=_idle_watts(meter, config.idle_s)),
        signing=Signing(
            keys,
            sign=partial(_sign, config, identity),
            ca=identity.tls.ca if identity else None,
        ),
        desk=EvaluationDesk(threads=config.threads),
        models=ModelKeeper(config, work_dir, courier),
    )
    limits = Limits(config.limits, vitals=lambda: read_vitals(work_dir))
    upgrader = _upgrader(courier, config, equipment.signing, source)
    renewal = Renewal(identity, courier) if identity else None
    succession = None
    if identity and keys and renewal:
        succession = SuccessionWatch(identity, courier, keys, fleet=config.fleet, renewal=renewal)
    agent = Agent(
        courier,
        equipment,
        limits=limits,
        supervisor=supervisor,
        notices=JobNotices(partial(link.tell, member.topics.progress(config.id)), vitals=lambda: limits.vitals),
        sign=sign,
        until_finished=until_finished,
        renewal=renewal,
        succession=succession,
        chores=upgrader,
    )
    # Subscribe before the link opens: by the first event, the broker knows our subscriptions.
    courier.join()
    if succession is not None:
        succession.join()
    if upgrader is not None:
        upgrader.join()
    sign.show("starting", f"connecting to fleet {config.fleet} at {link.host}:{link.port}")
    _open(link, supervisor, sign, is_patient=not config.named_brokers)
    supervisor.ready()
    log.info("joined fleet %s at %s:%d", config.fleet, link.host, link.port)
    try:
        with on_signals(agent.stop):
            agent.run()
    finally:
        link.close()
    return EXIT_SWITCHED if upgrader is not None and upgrader.wants_restart else 0


def _upgrader(courier: Courier, config: DeviceConfig, signing: Signing, source: Path) -> Upgrader | None:
    """What follows orders about releases; None outside of a secured fleet, and without the launcher."""
    if signing.keys is None:
        return None
    slots = Slots.from_environment()
    if slots is None:
        courier.say_upgrade(UpgradeStatus(stage="fixed", reason=NO_LAUNCHER))
        return None
    settings = Settings.of(config.fleet, signing.keys, config=source, work_dir=device_folder(config), ca=signing.ca)
    return Upgrader(courier, slots, settings)


def _open(link: Link, supervisor: Supervisor, sign: BoardSign, *, is_patient: bool) -> None:
    """Connect; raises LinkError on failure, unless it `is_patient`.

    A service that the broker refuses waits here: exiting would only make the supervisor restart it every few seconds.
    So does a device that found its broker by itself: it may have met somebody else, or an address that is gone.
    """
    for tries in itertools.count():
        try:
            _open_once(link)
            return
        except LinkError as error:
            sign.show("trouble", str(error))
            if not (is_patient or (supervisor.is_there and link.is_refused)):
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


def _trust(config: DeviceConfig, keys: PinnedKeys | None, work_dir: Path) -> Trust | None:
    if keys is None:
        return None
    return Trust(keys, fleet=config.fleet, path=work_dir / "trust.json")


def _sign(config: DeviceConfig, identity: Identity | None, offer: Offer) -> Offer:
    """The offer, signed if this device has an identity."""
    if identity is None:
        return offer
    statement = update_statement(offer, fleet=config.fleet, device=config.id)
    return msgspec.structs.replace(offer, signature=identity.sign(statement).hex())


def _ready_work_dir(config: DeviceConfig) -> None:
    """Make the folder and write to it: a full or read-only disk should fail now, not in mid-round."""
    folder = device_folder(config)
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
