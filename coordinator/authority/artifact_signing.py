"""Signs artifacts, so devices can tell the operator's artifacts from anyone else's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.op_libraries import known_libraries, library_content, platform_of
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, OpLibrary, amend_manifest, decode_manifest
from sparsyedge.edge.native import library_path
from sparsyedge.edge.security.signature import CONTEXT, SIGNATURE_NAME, check_signature
from sparsyedge.edge.storage import write_atomically

__all__ = ["load_signature", "sign", "sign_manifest", "unsigned_libraries"]


def sign(
    authority: Authority, directory: Path, libraries: Sequence[Path] = (), *, max_epochs: int | None = None
) -> Artifacts:
    """Sign artifacts for the fleet's op libraries, and rewrite the manifest with their hashes.

    These are this installation's own library, those on record in the authority's folder, and `libraries` (wheels or
    library files). Devices train at most `max_epochs` per round; without it, the manifest keeps its limit.
    """
    artifacts = Artifacts.load(directory)
    contents = [library_content(path) for path in (library_path(), *libraries)]
    meant = {OpLibrary(platform_of(content), hashlib.sha256(content).hexdigest()) for content in contents}
    listed = sorted(meant | set(known_libraries(authority.folder)), key=msgspec.structs.astuple)
    limit = artifacts.manifest.max_epochs if max_epochs is None else max_epochs
    path = directory / MANIFEST_NAME
    content = amend_manifest(path.read_bytes(), op_libraries=listed, max_epochs=limit)
    manifest = decode_manifest(content, source=str(path))
    # A crash between the two writes leaves a signature that does not match, so devices refuse the artifacts.
    write_atomically(path, content)
    sign_manifest(authority, directory, content)
    return Artifacts(directory, manifest)


def sign_manifest(authority: Authority, directory: Path, content: bytes) -> str:
    """Return the fleet's signature of this manifest, and keep it with the artifacts if it is theirs."""
    signature = authority.private_signing_key().sign(CONTEXT + content).hex()
    if (directory / MANIFEST_NAME).read_bytes() == content:
        write_atomically(directory / SIGNATURE_NAME, f"{signature}\n".encode())
    return signature


def unsigned_libraries(authority: Authority, directory: Path) -> tuple[OpLibrary, ...]:
    """Return recorded op libraries that the artifacts are not signed for; devices with these would refuse them."""
    signed = {library.sha256 for library in Artifacts.load(directory).manifest.op_libraries}
    return tuple(library for library in known_libraries(authority.folder) if library.sha256 not in signed)


def load_signature(directory: Path, *, signing_key: str, folder: Path) -> str:
    """Return the artifacts' signature; raises ArtifactError if devices would refuse it."""
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
