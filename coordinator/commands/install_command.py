"""`sparsyedge coordinator install RUN.toml | uninstall RUN.toml`: a service that goes on with its run at boot."""

from __future__ import annotations

import argparse
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from sparsyedge.coordinator.commands.service_unit import Service, unit_name, unit_text
from sparsyedge.coordinator.config import RunConfig, load_run_config
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically

__all__ = ["COMMANDS", "add_commands", "main"]

COMMANDS = ("install", "uninstall")
UNITS = Path("etc/systemd/system")


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add these commands to those of `sparsyedge coordinator`."""
    install = commands.add_parser("install", help="make a systemd service that goes on with the run at boot")
    install.add_argument("config", type=Path, metavar="RUN.toml", help="the run's config")
    install.add_argument("--user", metavar="NAME", help="who runs it (default: the owner of RUN.toml)")
    how = install.add_mutually_exclusive_group()
    how.add_argument("--print", action="store_true", help="print the unit and change nothing")
    _add_root(how)
    uninstall = commands.add_parser("uninstall", help="stop and remove that service; the run stays as it is")
    uninstall.add_argument("config", type=Path, metavar="RUN.toml", help="the run's config")
    _add_root(uninstall)


def _add_root(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--root", type=Path, metavar="DIR", help="the system below DIR instead, which does not run")


def main(arguments: argparse.Namespace) -> int:
    """Run one of COMMANDS."""
    config = load_run_config(arguments.config)
    if arguments.command == "uninstall":
        return _uninstall(config, arguments.root)
    service = make_service(config, arguments.config.resolve(), user=arguments.user)
    text = unit_text(service)
    if arguments.print:
        print(text, end="")
        return 0
    name, root = unit_name(config.name), arguments.root
    path = (root or Path("/")) / UNITS / name
    _require_systemctl()
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; run this as root, or see the unit with --print"
        ) from error
    path.chmod(0o644)
    if root is None:
        _systemctl("daemon-reload")
        _systemctl("enable", "--now", name)
        print(f"{name} runs as {service.user}; watch it with `journalctl -fu {name}`")
    else:
        _systemctl("--root", str(root), "enable", name)
        print(f"{path} starts with that system, as {service.user}")
    return 0


def make_service(config: RunConfig, path: Path, *, user: str | None) -> Service:
    """What the run's service needs; raises ConfigError if its user cannot be used."""
    owner = user or pwd.getpwuid(path.stat().st_uid).pw_name
    try:
        account = pwd.getpwnam(owner)
    except KeyError as error:
        raise ConfigError(
            f"there is no user {owner!r} here; make one with `useradd --system {owner}` or name another with --user"
        ) from error
    if account.pw_uid == 0 and user is None:
        raise ConfigError(
            f"{path} belongs to root, and a coordinator needs no root; name a user with --user who may read it and "
            f"write to {config.run_path.parent}"
        )
    # A folder that does not exist yet is made by the coordinator, in one that does.
    writable = [_existing(config.run_path)]
    if config.authority is not None:
        writable.append(Path(config.authority))
    if config.blobs is not None and "://" not in config.blobs.put:
        writable.append(Path(config.blobs.put))
    readable = [config.artifacts_path, Path(sys.prefix)]
    if config.data_path is not None:
        readable.append(config.data_path)
    return Service(
        run=config.name,
        user=account.pw_name,
        python=Path(sys.executable),
        config=path,
        writable=tuple(writable),
        readable=tuple(readable),
    )


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _uninstall(config: RunConfig, root: Path | None) -> int:
    name = unit_name(config.name)
    path = (root or Path("/")) / UNITS / name
    if not path.exists():
        raise ConfigError(f"there is no service {path}; it was never installed, or is gone already")
    _require_systemctl()
    if root is None:
        _systemctl("disable", "--now", name)
    else:
        _systemctl("--root", str(root), "disable", name)
    try:
        path.unlink()
    except OSError as error:
        raise ConfigError(f"cannot remove {path}: {error.strerror or error}; run this as root") from error
    if root is None:
        _systemctl("daemon-reload")
    print(f"{name} is gone; the run in {config.run_path} goes on with `sparsyedge coordinator run`")
    return 0


def _require_systemctl() -> None:
    if shutil.which("systemctl") is None:
        raise ConfigError("there is no systemctl here; print the unit with --print and install it where systemd is")


def _systemctl(*arguments: str) -> None:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise ConfigError(f"`systemctl {' '.join(arguments)}` failed: {said or f'code {done.returncode}'}")
