"""Connects a run to its fleet: unencrypted, or with the coordinator's certificate in a secured fleet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsyedge.coordinator.authority.artifact_signing import load_signature, sign_manifest, unsigned_libraries
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.edge.config import BrokerConfig, broker_list
from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.mqtt import Link

__all__ = [
    "answering",
    "check_epochs",
    "make_link",
    "manifest_signature",
    "open_authority",
    "sign_manifest_again",
    "warn_of_unsigned_libraries",
]

log = logging.getLogger(__name__)


def open_authority(config: RunConfig) -> Authority | None:
    """Open the fleet's authority, None if it has none; raises ConfigError if run and authority do not match."""
    if config.authority is None:
        return None
    authority = Authority.open(Path(config.authority).expanduser())
    if authority.settings.fleet != config.fleet:
        raise ConfigError(
            f"key `fleet` has value {config.fleet!r}, the authority in {authority.folder} is that of fleet "
            f"{authority.settings.fleet!r}; give the run the same `fleet`"
        )
    if config.broker != BrokerConfig():
        raise ConfigError(
            f"keys `broker` and `authority` are both there; leave out `broker`: {authority.folder} says where it is"
        )
    return authority


def make_link(config: RunConfig, identity: str, will: tuple[str, bytes] | None = None) -> Channel:
    """Make a connection to the run's broker; the caller opens it."""
    authority = open_authority(config)
    if authority is not None:
        return authority.link(identity, will)
    first, *others = ((broker.host, broker.port) for broker in broker_list(config.broker))
    return Link(*first, identity=identity, will=will, others=others)


def manifest_signature(config: RunConfig) -> str:
    """The artifacts' signature, empty without an authority; raises ArtifactError if devices would refuse it."""
    authority = open_authority(config)
    if authority is None:
        return ""
    return load_signature(config.artifacts_path, signing_key=authority.signing_key, folder=authority.folder)


def sign_manifest_again(config: RunConfig, content: bytes) -> str:
    """Sign with the fleet's present key a manifest that this run has announced under the one before."""
    authority = open_authority(config)
    return sign_manifest(authority, config.artifacts_path, content) if authority else ""


def warn_of_unsigned_libraries(config: RunConfig) -> None:
    """Warn about op libraries recorded after signing: devices that have them will refuse the artifacts."""
    authority = open_authority(config)
    for library in unsigned_libraries(authority, config.artifacts_path) if authority else ():
        log.warning(
            "devices with the op library %s... (%s) will refuse %s, which is not signed for it; run `sparsyedge "
            "coordinator sign %s --dir %s` and start again",
            library.sha256[:12],
            library.platform,
            config.artifacts_path,
            config.artifacts_path,
            authority.folder if authority else "",
        )


def check_epochs(config: RunConfig, max_epochs: int) -> None:
    """Raise ArtifactError if devices of a secured fleet would refuse the run's number of epochs."""
    if config.authority is not None and config.epochs > max_epochs:
        raise ArtifactError(
            f"key `epochs` has value {config.epochs}, the signed artifacts in {config.artifacts_path} allow "
            f"{max_epochs}; lower it, or run `sparsyedge coordinator sign {config.artifacts_path} --max-epochs "
            f"{config.epochs}`"
        )


@contextmanager
def answering(config: RunConfig) -> Iterator[None]:
    """Answer enrolments during the `with` block; does nothing without an authority."""
    authority = open_authority(config)
    if authority is None:
        yield
        return
    with serving(authority):
        yield
