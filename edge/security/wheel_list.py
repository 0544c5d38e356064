"""Lists of wheels that a fleet's key vouches for: SHA256SUMS files that a device checks before it installs anything.

The first line says what the list is, so that nothing else that the key signs passes for one; sha256sum(1) takes it for
a comment. docs/explanation/security.md tells who makes and checks such a list.
"""

from __future__ import annotations

import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sparsyedge.edge.errors import SecurityError

__all__ = ["LIST_HEADER", "LIST_NAME", "check_list", "list_entries"]

LIST_HEADER = "# sparsyedge wheels 1"
LIST_NAME = "SHA256SUMS-{python}"
"""One list per Python; its signature, 64 bytes, is beside it as `.sig`."""
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9_.+-]*\.(?:whl|lock))")


def list_entries(content: bytes, name: str) -> dict[str, str]:
    """The SHA-256 of every file by its name; raises SecurityError for what is not a list of wheels."""
    header, *lines = content.decode(errors="replace").splitlines() or [""]
    matches = [_LINE.fullmatch(line) for line in lines]
    if header != LIST_HEADER or not lines or not all(matches) or not content.endswith(b"\n"):
        raise SecurityError(f"{name} is not a list of wheels and their hashes; `sparsyedge flash wheelhouse` makes one")
    return {match[2]: match[1] for match in matches if match}


def check_list(content: bytes, signature: bytes, *, signing_key: str, name: str) -> dict[str, str]:
    """As list_entries, for a list that must be signed with the fleet's key; raises SecurityError where it is not."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing_key)).verify(signature, content)
    except (InvalidSignature, ValueError) as error:
        raise SecurityError(
            f"{name} is not signed with the fleet's key {signing_key[:12]}...: it was altered, or is of another fleet"
        ) from error
    return list_entries(content, name)
