"""Which addresses of a blob store are used, and which are refused in a sentence."""

from __future__ import annotations

import pytest

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.protocol.store_url import parse_store_url


@pytest.mark.parametrize(
    ("url", "is_tls", "place", "path"),
    [
        ("https://store.example/fleet", True, "store.example:443", "/fleet"),
        ("https://store.example", True, "store.example:443", ""),
        ("http://127.0.0.1:8080/a/b/", False, "127.0.0.1:8080", "/a/b"),
        ("http://[::1]:81/x%20y", False, "::1:81", "/x%20y"),
    ],
)
def test_a_plain_address_is_taken_apart(url: str, is_tls: bool, place: str, path: str) -> None:
    store = parse_store_url(url)
    assert (store.is_tls, store.place, store.path) == (is_tls, place, path)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://store.example/fleet", "scheme 'ftp'; allowed: http, https"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("store.example/fleet", "scheme ''"),
        ("https:///fleet", "names no host"),
        ("https://user:secret@store.example/fleet", "names a user"),
        ("https://store.example/fleet?token=secret", "query or fragment"),
        ("https://store.example/fleet#x", "query or fragment"),
        ("https://store.example:99999/", "cannot be read"),
        ("https://store.example:0/", "names no host and port"),
        ("https://store.example/a b", "characters that no URL has"),
        ("https://store.example/\r\nHost: other", "characters that no URL has"),
        ("https://störe.example/", "characters that no URL has"),
        ("https://[::1/", "cannot be read"),
        ("https://store.example/" + "x" * 500, "at most 500 are allowed"),
    ],
)
def test_any_other_address_is_refused_without_repeating_a_secret(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_store_url(url)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
