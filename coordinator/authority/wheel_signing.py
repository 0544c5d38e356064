"""Signs the lists of wheels for cards and phones, so devices install nothing else."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.wheel_list import LIST_NAME, list_entries
from sparsyedge.edge.storage import write_atomically

__all__ = ["sign_wheels"]


def sign_wheels(authority: Authority, folder: Path) -> list[Path]:
    """Sign every wheel list in a folder; signatures go next to the lists. Raises SecurityError if there is no list."""
    pattern = LIST_NAME.format(python="*")
    lists = sorted(path for path in folder.glob(pattern) if path.suffix != ".sig")
    if not lists:
        raise SecurityError(f"{folder} has no list of wheels ({pattern}); `sparsyedge flash wheelhouse` makes one")
    key = authority.private_signing_key()
    for path in lists:
        content = path.read_bytes()
        # Parse it first: the key must sign nothing but valid wheel lists.
        list_entries(content, str(path))
        write_atomically(path.with_name(f"{path.name}.sig"), key.sign(content))
    return lists
