"""The address of a blob store, checked alike where an operator writes it and where a device reads it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from sparsyedge.edge.errors import ConfigError

__all__ = ["MAX_URL", "StoreAddress", "parse_store_url"]

MAX_URL = 500


@dataclass(frozen=True)
class StoreAddress:
    """Where a store's blobs are: each at `path` + "/" + its SHA-256."""

    url: str
    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def place(self) -> str:
        """The store in a sentence."""
        return f"{self.host}:{self.port}"


def parse_store_url(url: str) -> StoreAddress:
    """Split a store's URL; raises ConfigError unless it is plain http or https without user, query or fragment.

    A user, a password or a query could be somebody's credentials, and the task that names the store is public.
    """
    if len(url) > MAX_URL:
        raise ConfigError(f"the URL of the blob store has {len(url)} characters; at most {MAX_URL} are allowed")
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise ConfigError(f"the blob store's URL {url!r} has characters that no URL has; write them as %XX")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"the blob store's URL {url!r} cannot be read: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"the blob store's URL {url!r} has scheme {parts.scheme!r}; allowed: http, https")
    if "@" in parts.netloc:
        raise ConfigError(
            f"the URL of the blob store at {host!r} names a user; every device and broker sees it, so remove that"
        )
    if "?" in url or "#" in url:
        raise ConfigError(f"the URL of the blob store at {host!r} has a query or fragment; give the folder's URL alone")
    if not host or port == 0:
        raise ConfigError(f"the blob store's URL {url!r} names no host and port; write https://HOST[:PORT]/FOLDER")
    is_tls = parts.scheme == "https"
    return StoreAddress(url, is_tls, host, port or (443 if is_tls else 80), parts.path.rstrip("/"))
