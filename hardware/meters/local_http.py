"""Asks an appliance in the local network over HTTP: bounded in bytes and, whatever it sends, in time."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import time
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["ANSWER_LIMIT_S", "MAX_ANSWER_BYTES", "fetch_table"]

ANSWER_LIMIT_S = 2.0
MAX_ANSWER_BYTES = 16 * 1024
"""Head and body together."""
_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,6})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


def fetch_table(address: str, path: str, *, limit_s: float = ANSWER_LIMIT_S) -> Mapping[str, Any]:
    """The JSON table that `address` (host or host:port) has at `path`; raises OSError or ValueError.

    Follows no redirection: that would ask a machine that nobody named.
    """
    status, body = _answer(_exchange(address, path, limit_s), address)
    if status != 200:
        raise ValueError(f"{address} answers {path} with status {status}")
    try:
        answer = json.loads(body)
    except RecursionError as error:
        raise ValueError(f"{address} answers {path} with tables within tables") from error
    if not isinstance(answer, dict):
        raise ValueError(f"{address} answers {path} with something else than a table")
    return answer


def _exchange(address: str, path: str, limit_s: float) -> bytes:
    """Everything that the appliance sends, head included."""
    deadline_s = time.monotonic() + limit_s
    host, _, port = address.partition(":")
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    received = b""
    with socket.create_connection((host, int(port or 80)), timeout=limit_s) as connection:
        connection.sendall(request.encode("ascii"))
        while not _is_complete(received):
            # A limit for each piece alone would let an appliance send one byte a second for hours.
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{address} takes longer than {limit_s:g} s to answer")
            connection.settimeout(left_s)
            piece = connection.recv(MAX_ANSWER_BYTES)
            if not piece:
                break
            received += piece
            if len(received) > MAX_ANSWER_BYTES:
                raise ValueError(f"{address} answers with more than {MAX_ANSWER_BYTES} bytes")
    return received


def _is_complete(received: bytes) -> bool:
    """Whether an appliance that does not hang up has said everything."""
    head, end, body = received.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not end:
        return False
    return len(body) >= int(length[1]) if length else body.endswith(b"\r\n0\r\n\r\n")


class _Received:
    """What http.client takes for a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _answer(received: bytes, address: str) -> tuple[int, bytes]:
    """Status and body."""
    response = http.client.HTTPResponse(cast(socket.socket, _Received(received)))
    try:
        response.begin()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{address} does not speak HTTP, or hung up: {error!r}") from error
    finally:
        response.close()
