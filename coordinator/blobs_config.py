"""The table `[blobs]` of RUN.toml: a web server that devices fetch models and artifacts from."""

from __future__ import annotations

from sparsyedge.edge.config import Section
from sparsyedge.edge.config_paths import StoreKey
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.protocol.store_url import MAX_URL, parse_store_url

__all__ = ["S3", "BlobsConfig", "check_blobs"]

S3 = "s3://"
FOLDER_ROOM = 100
"""Each run has a folder of its own below the URL; its name takes some of the room."""


class BlobsConfig(Section, frozen=True, kw_only=True):
    """A web server with this run's models and artifacts; without this table, devices get them from the broker."""

    url: str
    """Where devices fetch: an http or https URL of any static server; the run adds a folder of its own."""
    put: StoreKey
    """Where the coordinator puts them: the folder that is served at `url`, or `s3://BUCKET/PREFIX`."""
    fallback: bool = True
    """Whether the broker has them as well, for devices that cannot reach the server or are older than this key."""


def check_blobs(config: BlobsConfig) -> None:
    """Raise ConfigError for a URL that devices would not use, and for a place where we cannot put anything."""
    try:
        parse_store_url(config.url)
    except ConfigError as error:
        raise ConfigError(f"key `blobs.url`: {error}") from error
    if len(config.url) > MAX_URL - FOLDER_ROOM:
        raise ConfigError(
            f"key `blobs.url` has {len(config.url)} characters; at most {MAX_URL - FOLDER_ROOM} are allowed"
        )
    scheme, separator, bucket = config.put.partition("://")
    if separator and (scheme != "s3" or not bucket.strip("/")):
        raise ConfigError(f"key `blobs.put` has value {config.put!r}; allowed: a folder, or s3://BUCKET/PREFIX")
