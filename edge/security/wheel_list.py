"""Lists of wheels signed with a fleet's key: SHA256SUMS files that a device checks before it installs anything.

The first line marks the file as such a list, so nothing else signed by the key can pass for one; sha256sum(1) treats
it as a comment. docs/explanation/security.md says who makes and checks these lists.
"""

from __future__ import annotations

import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sparsyedge.edge.errors import SecurityError

__all__ = ["LIST_HEADER", "LIST_NAME", "check_list", "list_entries"]

LIST_HEADER = "# sparsyedge wheels 1"
LIST_NAME = "SHA256SUMS-{python}"
"""One list per Python; its 64-byte signature is beside it as `.sig`."""
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9_.+-]*\.(?:whl|lock))")


def list_entries(content: bytes, name: str) -> dict[str, str]:
    """The SHA-256 of every file by name; raises SecurityError if this is not a list of wheels."""
    header, *lines = content.decode(errors="replace").splitlines() or [""]
    matches = [_LINE.fullmatch(line) for line in lines]
    if header != LIST_HEADER or not lines or not all(matches) or not content.endswith(b"\n"):
        raise SecurityError(f"{name} is not a list of wheels and their hashes; `sparsyedge flash wheelhouse` makes one")
    return {match[2]: match[1] for match in matches if match}


def check_list(content: bytes, signature: bytes, *, signing_key: str, name: str) -> dict[str, str]:
    """Like list_entries, but raises SecurityError unless the fleet's key signed the list."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing_key)).verify(signature, content)
    except (InvalidSignature, ValueError) as error:
        raise SecurityError(
            f"{name} is not signed with the fleet's key {signing_key[:12]}...: it was altered, or is from another fleet"
        ) from error
    return list_entries(content, name)
