"""Signs the lists of wheels that cards and phones install, so that nothing else is installed on a device."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.wheel_list import LIST_NAME, list_entries
from sparsyedge.edge.storage import write_atomically

__all__ = ["sign_wheels"]


def sign_wheels(authority: Authority, folder: Path) -> list[Path]:
    """Sign every list in a wheelhouse; the signatures go beside them. Raises SecurityError where there is none."""
    pattern = LIST_NAME.format(python="*")
    lists = sorted(path for path in folder.glob(pattern) if path.suffix != ".sig")
    if not lists:
        raise SecurityError(f"{folder} has no list of wheels ({pattern}); `sparsyedge flash wheelhouse` makes one")
    key = authority.private_signing_key()
    for path in lists:
        content = path.read_bytes()
        # The key signs nothing but what it is asked for: a file of another form is no list.
        list_entries(content, str(path))
        write_atomically(path.with_name(f"{path.name}.sig"), key.sign(content))
    return lists
