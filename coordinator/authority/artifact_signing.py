"""Signs artifacts, which lets devices tell the operator's artifacts from anybody else's."""

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

__all__ = ["load_signature", "sign", "unsigned_libraries"]


def sign(
    authority: Authority, directory: Path, libraries: Sequence[Path] = (), *, max_epochs: int | None = None
) -> Artifacts:
    """Sign artifacts for the op libraries that the fleet has; the manifest is written anew with their hashes in it.

    Those are this installation's, the ones on record in the authority's folder, and `libraries` (wheels, or the
    libraries themselves). Devices train `max_epochs` per round at most; what was signed before where it is left out.
    """
    artifacts = Artifacts.load(directory)
    contents = [library_content(path) for path in (library_path(), *libraries)]
    meant = {OpLibrary(platform_of(content), hashlib.sha256(content).hexdigest()) for content in contents}
    listed = sorted(meant | set(known_libraries(authority.folder)), key=msgspec.structs.astuple)
    limit = artifacts.manifest.max_epochs if max_epochs is None else max_epochs
    path = directory / MANIFEST_NAME
    content = amend_manifest(path.read_bytes(), op_libraries=listed, max_epochs=limit)
    manifest = decode_manifest(content, source=str(path))
    # A crash in between leaves a signature that does not fit, which is refused, and never one that fits something else.
    write_atomically(path, content)
    signature = authority.private_signing_key().sign(CONTEXT + content).hex()
    write_atomically(directory / SIGNATURE_NAME, f"{signature}\n".encode())
    return Artifacts(directory, manifest)


def unsigned_libraries(authority: Authority, directory: Path) -> tuple[OpLibrary, ...]:
    """Recorded op libraries that these artifacts are not signed for; devices that have them would refuse."""
    signed = {library.sha256 for library in Artifacts.load(directory).manifest.op_libraries}
    return tuple(library for library in known_libraries(authority.folder) if library.sha256 not in signed)


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
