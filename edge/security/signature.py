"""Signatures of artifacts and updates.

The operator signs the manifest (Ed25519), which contains the hash of every file. A device signs each of its offers
(ECDSA, with the key of its certificate), which contain the hash of the update.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.protocol.messages import Offer
from sparsyedge.edge.storage import sha256_file

__all__ = ["CONTEXT", "SIGNATURE_NAME", "check_library", "check_signature", "update_statement"]

SIGNATURE_NAME = "manifest.sig"
CONTEXT = b"sparsyedge manifest 1\n"
"""Prefix for the manifest: no other signature by this key can pass for a manifest's."""
UPDATE_CONTEXT = b"sparsyedge update 1\n"


def check_signature(manifest: bytes, signature: str, *, signing_key: str) -> None:
    """Raise ArtifactError unless the pinned key signed the manifest; key and signature are hex."""
    advice = "sign the artifacts with `sparsyedge coordinator sign`"
    if not signature:
        raise ArtifactError(f"the artifacts are not signed, and this device takes only signed ones; {advice}")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing_key))
        key.verify(bytes.fromhex(signature), CONTEXT + manifest)
    except (InvalidSignature, ValueError) as error:
        raise ArtifactError(
            f"the signature of the manifest is not that of key {signing_key[:12]}..., which this device trusts: "
            f"it was altered or signed by somebody else; {advice}"
        ) from error


def check_library(manifest: Manifest, library: Path) -> None:
    """Raise ArtifactError unless the signed manifest lists this op library."""
    found = sha256_file(library)
    if found not in {signed.sha256 for signed in manifest.op_libraries}:
        known = ", ".join(f"{signed.sha256[:12]}... ({signed.platform})" for signed in manifest.op_libraries) or "none"
        raise ArtifactError(
            f"the op library {library} has SHA-256 {found[:12]}..., the signed manifest lists {known}; install the "
            f"wheel that the operator signed, or sign again with `sparsyedge coordinator sign --op-library WHEEL`"
        )


def update_statement(offer: Offer, *, fleet: str, device: str) -> bytes:
    """The bytes a device signs with an offer: this update is mine, for this round, from this many samples."""
    facts = (fleet, device, offer.run, offer.round, offer.base, offer.update.sha256, offer.update.bytes, offer.samples)
    return UPDATE_CONTEXT + msgspec.json.encode(facts)
