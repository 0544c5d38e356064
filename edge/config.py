"""Config files: TOML read once into frozen structs. Unknown keys and values out of bounds raise errors with the key."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from sparsyedge.edge.config_paths import DatasetKey, PathKey, resolve_paths
from sparsyedge.edge.cores import MAX_THREADS, available_cores
from sparsyedge.edge.errors import ConfigError

__all__ = [
    "MAX_BROKERS",
    "BrokerConfig",
    "Brokers",
    "DataConfig",
    "DeviceConfig",
    "HwmonConfig",
    "Identifier",
    "LimitsConfig",
    "MetersConfig",
    "PartitionConfig",
    "PlugConfig",
    "Port",
    "Section",
    "UsbMeterConfig",
    "broker_list",
    "load_config",
    "read_section",
]

# An identity is one level of an MQTT topic: no separators, no wildcards, nothing special to a shell or file system.
Identifier = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Argument = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a config file; refuses undeclared keys."""


class BrokerConfig(Section, frozen=True):
    """The MQTT broker where coordinator and devices meet."""

    host: str = "127.0.0.1"
    """The broker's name or address; any machine but this one requires a secured fleet."""
    port: Port = 1883
    """The broker's port: 1883 unencrypted on this machine, 8883 in a secured fleet."""


MAX_BROKERS = 16
Brokers = BrokerConfig | Annotated[tuple[BrokerConfig, ...], msgspec.Meta(min_length=1, max_length=MAX_BROKERS)]
"""One broker, or the nodes of a cluster in the order in which to try them."""


def broker_list(brokers: Brokers) -> tuple[BrokerConfig, ...]:
    """The brokers of a config, one or several."""
    return (brokers,) if isinstance(brokers, BrokerConfig) else brokers


class PartitionConfig(Section, frozen=True):
    """One device's share of a public data set, for simulations: a Latent Dirichlet Allocation over the labels."""

    devices: Annotated[int, msgspec.Meta(ge=1)]
    """The number of shares to split the data set into."""
    index: Annotated[int, msgspec.Meta(ge=0)]
    """This device's share, counted from 0."""
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Small values give each device few classes; large values give all devices the same mix. Not for a regression."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1337
    """Determines the shares; all devices of a fleet need the same seed."""


class DataConfig(Section, frozen=True):
    """The device's training data: a whole data set or one share of it."""

    dataset: DatasetKey
    """The name of a data set, or the path of an .npz file or a folder of images."""
    data_dir: PathKey | None = None
    """The first folder to search for data sets, before $SPARSYEDGE_DATA and the cache."""
    partition: PartitionConfig | None = None
    """This device's share; by default it trains on the whole train part of the data set."""
    min_samples: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 1
    """How many samples the device needs to take part; with fewer it says so and waits for more."""
    tell_classes: bool = True
    """Whether a run that picks cohorts by classes may know which this device has; if not, it takes no part in such."""


class LimitsConfig(Section, frozen=True):
    """When the device pauses training; a value that it cannot measure sets no limit."""

    max_temperature_c: Annotated[float, msgspec.Meta(gt=0, le=120)] = 95.0
    """The highest temperature to train at. The default suits laptops; `flash` writes 80 for a Pi and 40 for a phone."""
    min_battery_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 30.0
    """The lowest charge to train at while on battery."""
    min_free_memory_mb: Annotated[float, msgspec.Meta(ge=0)] = 64.0
    """The least free memory to train with."""
    min_free_disk_mb: Annotated[float, msgspec.Meta(ge=0)] = 200.0
    """The least free space, on the disk of `work_dir`, to train with."""
    only_on_charger: bool = False
    """Whether to train only on a charger. A phone that does not tell counts as on battery."""
    wifi_only: bool = False
    """Whether to train only on Wi-Fi. A phone that does not tell counts as on mobile data."""


class PlugConfig(Section, frozen=True):
    """A smart plug that measures a board's supply, for the meters `shelly` and `tasmota`."""

    address: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,253}(:[0-9]{1,5})?\Z")]
    """The plug's name or address in the local network, with `:port` if that is not 80."""
    feeds: Identifier
    """The device that the plug feeds; every other device refuses it."""
    switch: Annotated[int, msgspec.Meta(ge=0, le=15)] = 0
    """Which switch of a Shelly with several, counted from 0."""
    most_w: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 200.0
    """More watts than the board ever draws; a larger reading must be in another unit, and is not counted."""


class UsbMeterConfig(Section, frozen=True):
    """A UM24C, UM25C or UM34C in the board's USB supply, for the meter `um25c`."""

    port: PathKey
    """Its serial port, such as `/dev/rfcomm0`."""
    feeds: Identifier
    """The device that it feeds; every other device refuses it."""


ChannelName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class HwmonConfig(Section, frozen=True):
    """Which sensors the meter `hwmon` adds up."""

    channels: Annotated[tuple[ChannelName, ...], msgspec.Meta(max_length=64)] = ()
    """Labels such as `VDD_IN`, or chip and number such as `ina3221:2`; if empty, the board's input, else all rails."""
    whole_board: bool = False
    """Whether `channels` are all that feeds the board; else their joules count as those of rails."""


class MetersConfig(Section, frozen=True):
    """What meters need to know that they cannot find out by themselves."""

    plug: PlugConfig | None = None
    """The smart plug that feeds this device."""
    usb: UsbMeterConfig | None = None
    """The USB power meter that feeds this device."""
    hwmon: HwmonConfig = HwmonConfig()
    """The sensors of `hwmon`."""
    calibration: PathKey | None = None
    """The file from `sparsyedge bench meter --out`; with it, the joules of `cpu-model` are `calibrated`."""


MeterName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class DeviceConfig(Section, frozen=True):
    """device.toml: the device's name, its broker and its data."""

    id: Identifier
    """The device's name, unique in its fleet."""
    data: DataConfig
    """The device's training data."""
    fleet: Identifier = "default"
    """The device's fleet."""
    work_dir: PathKey = "~/.local/share/sparsyedge"
    """The folder for models, updates and unfinished jobs, with a subfolder per fleet and device."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] = msgspec.field(default_factory=available_cores)
    """The number of training threads; defaults to the number of cores."""
    meter: str | Annotated[tuple[MeterName, ...], msgspec.Meta(min_length=1, max_length=16)] = "auto"
    """The energy meter: `auto`, `none` or one of docs/reference/meters.md; or several, the preferred one first."""
    idle_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 3.0
    """How many seconds to measure idle power at startup; 0 skips it."""
    broker: Brokers = BrokerConfig()
    """The fleet's broker, or as `[[broker]]` its cluster's nodes; a device with `identity` finds it if left out."""
    find_broker: bool = False
    """Whether to look for the broker on the local network if it does not answer; only with `identity`."""
    identity: PathKey | None = None
    """The folder from `sparsyedge edge enrol`: the device's key and certificate, and the authority it trusts."""
    limits: LimitsConfig = LimitsConfig()
    """When this device pauses training."""
    meters: MetersConfig = MetersConfig()
    """What the energy meter needs to know."""
    model: Literal["every", "last", "off"] = "last"
    """Which of the fleet's models this device keeps for predictions: each round's, a finished run's, or none."""
    personalised: bool = False
    """Whether to keep the device's own model, too, as it is after each training."""
    on_model: Annotated[tuple[Argument, ...], msgspec.Meta(max_length=64)] = ()
    """A program and its arguments, run when the fleet's model for predictions has changed."""
    on_model_limit_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    """How many seconds `on_model` may take; then it is ended with everything that it started."""

    @property
    def named_brokers(self) -> tuple[BrokerConfig, ...]:
        """The brokers that the config names; none for a member of a secured fleet that is to find its broker."""
        return () if self.identity is not None and self.broker == BrokerConfig() else broker_list(self.broker)


Config = TypeVar("Config", bound=Section)


def load_config(path: Path, kind: type[Config] | Callable[[dict[str, Any]], type[Config]]) -> Config:
    """Read a TOML file as `kind` and make its paths absolute; `kind` may be a function of the file's content.

    Raises ConfigError that names the key, the value and what is allowed.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no config file {path}; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        section = kind if isinstance(kind, type) else kind(content)
        return resolve_paths(read_section(content, section), path.absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_section(content: dict[str, Any], kind: type[Config]) -> Config:
    """Convert plain values to `kind`; raises ConfigError as `load_config` does."""
    try:
        config = msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), content, kind)) from error
    # TOML allows inf and nan, and inf passes a lone lower bound.
    for path, number in _floats(config):
        if not math.isfinite(number):
            raise ConfigError(f"key `{path}` has value {number}: not a finite number{_allowed_range(kind, path)}")
    return config


def _floats(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every float in a section, with the path of its key."""
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, Section):
        for field in msgspec.structs.fields(value):
            yield from _floats(getattr(value, field.name), _join(path, field.encode_name))
    elif isinstance(value, (dict, tuple, list)):
        for place, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _floats(item, f"{path}[{place}]")


def _explain(message: str, content: dict[str, Any], kind: type[Section]) -> str:
    """Turn msgspec's message into a sentence: the key as written in the file, its value, and what is allowed."""
    place = re.search(r" - at `\$\.?(.*)`$", message)
    path = place.group(1) if place else ""
    text = message[: place.start()] if place else message
    unknown = re.match(r"Object contains unknown field `(.*)`", text)
    if unknown:
        return _explain_unknown(unknown.group(1), path, kind)
    missing = re.match(r"Object missing required field `(.*)`", text)
    if missing:
        return f"key `{_join(path, missing.group(1))}` is missing; add it"
    value = _value_at(content, path)
    shown = f" has value {value!r}" if value is not None else ""
    return f"key `{path}`{shown}: {text[0].lower()}{text[1:]}{_allowed_range(kind, path)}"


def _value_at(content: dict[str, Any], path: str) -> Any:
    """The file's value at that path; None inside a free table, where msgspec does not name the key."""
    value: Any = content
    for step in _steps(path):
        if isinstance(value, (list, tuple)):
            value = value[int(step[1:-1])]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _explain_unknown(name: str, path: str, kind: type[Section]) -> str:
    allowed = _fields_at(kind, path)
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"allowed here: {', '.join(allowed)}"
    return f"unknown key `{_join(path, name)}`; {hint}"


def _allowed_range(kind: type[Section], path: str) -> str:
    """The allowed range of a number or choices of a word, plus the reason if the type has a description.

    msgspec names only the violated bound, or nothing.
    """
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    info = _type_at(kind, path)
    for declared in getattr(info, "types", (info,)):
        option, reason = _without_reason(declared)
        if isinstance(option, msgspec.inspect.LiteralType):
            return f"; allowed: {', '.join(map(str, option.values))}"
        ends = {end: getattr(option, end, None) for end in words}
        bounds = [f"{words[end]} {value:g}" for end, value in ends.items() if value is not None]
        if bounds:
            return f"; allowed: {' and '.join(bounds)}{reason}"
    return ""


def _without_reason(info: Any) -> tuple[Any, str]:
    """A type, and its description in parentheses."""
    if not isinstance(info, msgspec.inspect.Metadata):
        return info, ""
    description = (info.extra_json_schema or {}).get("description")
    return info.type, f" ({description})" if description else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _steps(path: str) -> list[str]:
    """Split `a.b[1].c` into "a", "b", "[1]", "c"."""
    return re.findall(r"\[[^]]*\]|[^.\[]+", path)


def _fields_at(kind: type[Section], path: str) -> list[str]:
    """The allowed keys of the table at that path."""
    return [field.encode_name for field in _table(_type_at(kind, path)).fields]


def _type_at(kind: type[Section], path: str) -> Any:
    """The declared type at that path."""
    info: Any = msgspec.inspect.type_info(kind)
    for step in _steps(path):
        if step.startswith("["):
            info = next((option for option in map(_bare, getattr(info, "types", ())) if _holds_items(option)), info)
            info = _item_type(_table(info), step)
        else:
            info = next(field.type for field in _table(info).fields if field.encode_name == step)
    return _table(info)


def _table(info: Any) -> Any:
    """Unwrap an optional table."""
    return next((option for option in getattr(info, "types", ()) if hasattr(option, "fields")), info)


def _bare(info: Any) -> Any:
    """A type without its metadata."""
    return info.type if isinstance(info, msgspec.inspect.Metadata) else info


def _holds_items(info: Any) -> bool:
    return any(hasattr(info, name) for name in ("item_type", "item_types", "value_type"))


def _item_type(info: Any, step: str) -> Any:
    if hasattr(info, "item_types"):
        return info.item_types[int(step[1:-1])]
    return info.item_type if hasattr(info, "item_type") else info.value_type
