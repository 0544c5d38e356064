"""Signs artifacts, so that devices can tell the operator's from anybody else's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sparsyedge.coordinator.authority import Authority
from sparsyedge.coordinator.libraries import library_content, platform_of
from sparsyedge.edge.artifacts import MANIFEST_NAME, Artifacts, OpLibrary
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.native import library_path
from sparsyedge.edge.signature import CONTEXT, SIGNATURE_NAME, check_signature
from sparsyedge.edge.storage import write_atomically

__all__ = ["load_signature", "sign"]


def sign(authority: Authority, directory: Path, libraries: Sequence[Path]) -> Artifacts:
    """Sign artifacts for devices with these op libraries (wheels, or the libraries themselves).

    Without any, the library of this installation is meant. The manifest is written anew with their hashes in it.
    """
    artifacts = Artifacts.load(directory)
    contents = [library_content(path) for path in libraries or [library_path()]]
    known = {hashlib.sha256(content).hexdigest(): platform_of(content) for content in contents}
    listed = sorted((OpLibrary(platform, sha256) for sha256, platform in known.items()), key=msgspec.structs.astuple)
    manifest = msgspec.structs.replace(artifacts.manifest, op_libraries=tuple(listed))
    signed = Artifacts(directory, manifest)
    # A crash in between leaves a signature that does not fit, which is refused, and never one that fits something else.
    signed.save_manifest()
    content = (directory / MANIFEST_NAME).read_bytes()
    signature = authority.private_signing_key().sign(CONTEXT + content).hex()
    write_atomically(directory / SIGNATURE_NAME, f"{signature}\n".encode())
    return signed


def load_signature(directory: Path, *, signing_key: str, folder: Path) -> str:
    """The signature of artifacts that devices will be sent; raises ArtifactError where they would refuse it."""
    try:
        signature = (directory / SIGNATURE_NAME).read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        signature = ""
    try:
        check_signature((directory / MANIFEST_NAME).read_bytes(), signature, signing_key=signing_key)
    except ArtifactError as error:
        raise ArtifactError(
            f"the devices of this fleet would refuse {directory}: its signature is missing or does not fit; run "
            f"`sparsyedge coordinator sign {directory} --dir {folder}`"
        ) from error
    return signature
