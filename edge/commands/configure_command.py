"""`sparsyedge edge configure CONFIG CHANGES`: changes keys of a device.toml, whole or not at all."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import DeviceConfig, load_config, read_section
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.toml_text import merged_tables, toml_text

__all__ = ["main", "make_parser"]

OWN_KEYS = ("id", "fleet", "identity")
MAX_CHANGES_BYTES = 64 * 1024


def main(argv: list[str]) -> int:
    """Change the config and say which keys are other ones now; raises ConfigError, and then nothing has changed."""
    options = make_parser().parse_args(argv)
    load_config(options.config, DeviceConfig)
    before = tomllib.loads(options.config.read_text(encoding="utf-8"))
    changes = _read_changes(options.changes)
    for key in OWN_KEYS:
        if key in changes and changes[key] != before.get(key):
            raise ConfigError(f"{options.changes}: key `{key}` is the device's identity; enrol again to change it")
    after = merged_tables(before, changes)
    try:
        read_section(after, DeviceConfig)
    except ConfigError as error:
        raise ConfigError(f"{options.changes}: {error}; {options.config} stays as it was") from error
    changed = sorted(key for key in after if after[key] != before.get(key))
    if changed:
        write_atomically(options.config, toml_text(after).encode())
    print(f"{options.config}: {', '.join(changed) or 'nothing'} changed")
    return 0


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge edge configure", description="Change keys of a device's config.")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the device.toml to change")
    parser.add_argument("changes", type=Path, metavar="CHANGES", help="a TOML file with the keys that change")
    return parser


def _read_changes(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.loads(file.read(MAX_CHANGES_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
