"""How this sparsyedge was installed, and the command that adds an extra. The package is on no index.

Imports only the standard library: it explains why some other import failed.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["PACKAGE", "checkout", "install_command", "installed_wheel"]

PACKAGE = "sparsyedge"


@dataclass(frozen=True)
class _Origin:
    """The folder or file that pip installed this sparsyedge from."""

    path: Path
    editable: bool

    @property
    def is_checkout(self) -> bool:
        return (self.path / "pyproject.toml").is_file() and (self.path / "edge" / "native").is_dir()

    @property
    def is_wheel(self) -> bool:
        return self.path.suffix == ".whl" and self.path.is_file()


def checkout() -> Path | None:
    """The source folder that this sparsyedge was installed from, if it still exists."""
    origin = _origin()
    return origin.path if origin is not None and origin.is_checkout else None


def installed_wheel() -> Path | None:
    """The wheel that this sparsyedge was installed from, if it still exists."""
    origin = _origin()
    return origin.path if origin is not None and origin.is_wheel else None


def install_command(extra: str | None = None) -> str:
    """The command that installs the dependencies of sparsyedge, or of one of its extras, into this Python."""
    origin = _origin()
    if origin is not None and (origin.is_checkout or origin.is_wheel):
        target = shlex.quote(f"{origin.path}[{extra}]" if extra else str(origin.path))
        return f"{_pip()} install {'--editable ' if origin.editable else ''}{target}"
    wanted = " ".join(map(shlex.quote, _requirements(extra))) if extra else f"{PACKAGE}-*.whl"
    return f"{_pip()} install {wanted}"


def _origin() -> _Origin | None:
    """pip's own record of the install (PEP 610); None unless the package came from this machine's disk."""
    try:
        written = json.loads(metadata.distribution(PACKAGE).read_text("direct_url.json") or "null")
        url = urlsplit(written["url"])
        editable = bool(written.get("dir_info", {}).get("editable"))
    except (metadata.PackageNotFoundError, ValueError, TypeError, LookupError, AttributeError):
        return None
    return _Origin(Path(unquote(url.path)), editable) if url.scheme == "file" else None


def _pip() -> str:
    """`pip` if the shell finds this Python's own, else `PYTHON -m pip`: many users never activate the environment."""
    found = shutil.which("pip")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if ours else f"{shlex.quote(sys.executable)} -m pip"


def _requirements(extra: str) -> list[str]:
    """The requirements of an extra, with our own extras expanded: an index has all the others, but not us."""
    found: list[str] = []
    for line in metadata.requires(PACKAGE) or ():
        need, _, marker = (part.strip() for part in line.partition(";"))
        if not re.fullmatch(rf"""extra == ['"]{re.escape(extra)}['"]""", marker):
            continue
        own = re.fullmatch(rf"{PACKAGE}\[(.*)\]", need)
        found += [one for inner in own.group(1).split(",") for one in _requirements(inner.strip())] if own else [need]
    return list(dict.fromkeys(found))
