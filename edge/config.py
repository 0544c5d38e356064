"""Config files: TOML read once into frozen structs; an unknown key or a value out of bounds is an error by name."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from sparsyedge.edge.errors import ConfigError

__all__ = ["BrokerConfig", "DataConfig", "DeviceConfig", "Identifier", "PartitionConfig", "Port", "load_config"]

# Identities are levels of MQTT topics: no separator, no wildcard, nothing that a shell or a file system takes amiss.
Identifier = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a config file; a key that it does not declare is refused."""


class BrokerConfig(Section, frozen=True):
    """The MQTT broker that coordinator and devices meet at."""

    host: str = "127.0.0.1"
    port: Port = 1883


class PartitionConfig(Section, frozen=True):
    """One device's share of a public data set, as in simulations: a Latent Dirichlet Allocation over the labels."""

    devices: Annotated[int, msgspec.Meta(ge=1)]
    index: Annotated[int, msgspec.Meta(ge=0)]
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1337


class DataConfig(Section, frozen=True):
    """What the device trains on: a data set by name or the path of an .npz, whole or one share of it."""

    dataset: str
    data_dir: str | None = None
    partition: PartitionConfig | None = None


class DeviceConfig(Section, frozen=True):
    """device.toml: who this device is, where its broker is, what it trains on."""

    id: Identifier
    data: DataConfig
    fleet: Identifier = "default"
    work_dir: str = "~/.local/share/sparsyedge"
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    meter: str = "auto"
    broker: BrokerConfig = BrokerConfig()


Config = TypeVar("Config", bound=Section)


def load_config(path: Path, kind: type[Config]) -> Config:
    """Read a TOML file as `kind`; raises ConfigError that names the key, the value and what is allowed."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no config file {path}; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(str(error), content, kind)}") from error


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
    value: Any = content
    for step in _steps(path):
        value = value.get(step) if isinstance(value, dict) else None
    shown = f" has value {value!r}" if value is not None else ""
    return f"key `{path}`{shown}: {text[0].lower()}{text[1:]}"


def _explain_unknown(name: str, path: str, kind: type[Section]) -> str:
    allowed = _fields_at(kind, path)
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"allowed here: {', '.join(allowed)}"
    return f"unknown key `{_join(path, name)}`; {hint}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _steps(path: str) -> list[str]:
    """`a.b[1].c` as "a", "b", "[1]", "c"."""
    return re.findall(r"\[[^]]*\]|[^.\[]+", path)


def _fields_at(kind: type[Section], path: str) -> list[str]:
    """The keys that the table at that path may have."""
    info: Any = msgspec.inspect.type_info(kind)
    for step in _steps(path):
        if step.startswith("["):
            info = info.item_type if hasattr(info, "item_type") else info.value_type
        else:
            info = next(field.type for field in info.fields if field.encode_name == step)
        # Of an optional table, the table.
        info = next((option for option in getattr(info, "types", ()) if hasattr(option, "fields")), info)
    return [field.encode_name for field in info.fields]
