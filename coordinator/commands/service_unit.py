"""The systemd unit of a coordinator: what it may touch follows from its run's config. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import ConfigError

__all__ = ["Service", "unit_name", "unit_text"]

HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
PRIVATE = (Path("/tmp"), Path("/var/tmp"))
"""A service with PrivateTmp has its own."""

UNIT = """\
# Made by `sparsyedge coordinator install`; `sparsyedge coordinator uninstall` removes it.
[Unit]
Description=sparsyedge coordinator of run {run}
Wants=network-online.target
After=network-online.target time-sync.target mosquitto.service nats-server.service
# A broker that is away for a night must not end the service.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
User={user}
WorkingDirectory={folder}
ExecStart={command}
Environment=PYTHONUNBUFFERED=1
# A run that ended is no failure; one that was killed or lost its broker goes on where it was.
Restart=on-failure
RestartSec=30
TimeoutStartSec=infinity
TimeoutStopSec=120
KillMode=mixed
# It says that it is alive every second, but not while it closes a round and evaluates the model.
WatchdogSec=1800

# It talks to its broker and writes to its own folders; everything else is shut.
ReadWritePaths={writable}
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome={homes}
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
PrivateUsers=yes
PrivateMounts=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Service:
    """What a unit is made from; all paths are absolute."""

    run: str
    user: str
    python: Path
    config: Path
    writable: tuple[Path, ...]
    """Folders that the coordinator writes to; they must exist when the service starts."""
    readable: tuple[Path, ...]
    """Everything else that it needs."""


def unit_name(run: str) -> str:
    """The name of the unit for a run."""
    return f"sparsyedge-coordinator-{run}.service"


def unit_text(service: Service) -> str:
    """The unit; raises ConfigError if it could not reach what it needs."""
    paths = (service.config, service.python, *service.writable, *service.readable)
    for path in paths:
        _check(path)
    # `python -m` needs no script on a path; -P keeps the working directory out of the imports.
    words = ("-P", "-m", "sparsyedge.edge", "coordinator", "run", "--service")
    command: tuple[str | Path, ...] = (service.python, *words, service.config)
    return UNIT.format(
        run=service.run,
        user=service.user,
        # systemd takes the rest of this line as it is, spaces included.
        folder=str(service.config.parent).replace("%", "%%"),
        command=" ".join(_quoted(word).replace("$", "$$") for word in command),
        writable=" ".join(_quoted(path) for path in sorted(set(service.writable))),
        homes="read-only" if any(_is_below(path, HOMES) for path in paths) else "yes",
    )


def _check(path: Path) -> None:
    if _is_below(path, PRIVATE):
        raise ConfigError(f"{path} is in a folder that a service cannot see (it has its own /tmp); move it elsewhere")
    if any(not sign.isprintable() for sign in str(path)):
        raise ConfigError(f"{str(path)!r} has signs that cannot be in a unit; rename it")


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _quoted(word: str | Path) -> str:
    """A word as systemd reads it back: quoted, with nothing for it to expand."""
    text = str(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if any(sign in text for sign in " \"'\\;#") else text
