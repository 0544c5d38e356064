"""The page of `coordinator run --web`: a process of its own, so that nothing it does can hold up the leader.

It ends with the process that started it, however that ends: it notices that the other end of a pipe is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sparsyedge.coordinator.authority.page_access import Pair
from sparsyedge.coordinator.web.address import Address, listen
from sparsyedge.coordinator.web.server import Access, serve
from sparsyedge.edge.commands import logs
from sparsyedge.edge.errors import LinkError

__all__ = ["main", "page_beside"]

log = logging.getLogger(__name__)

LEAVE_S = 5.0
NICENESS = 5


class _Orders(msgspec.Struct):
    """What the child is told, as JSON in its only argument."""

    run_dir: str
    listener: int
    lifeline: int
    names: tuple[str, ...]
    authority: str | None
    certificate: str | None
    key: str | None


@contextlib.contextmanager
def page_beside(run_dir: Path, address: Address, access: Access) -> Iterator[None]:
    """Serve the page during the block, in another process; a page that cannot start or dies is only logged."""
    try:
        listener = listen(address)
    except LinkError as error:
        log.warning("%s; the run goes on without a page", error)
        yield
        return
    read_end, write_end = os.pipe()
    try:
        with listener:
            process = _start(run_dir, listener, read_end, access)
            log.info("the page is at %s://%s:%d", access.scheme, address.host, listener.getsockname()[1])
    finally:
        os.close(read_end)
    ending = threading.Event()
    threading.Thread(target=_report_end, args=(process, ending), daemon=True).start()
    try:
        yield
    finally:
        ending.set()
        os.close(write_end)
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(run_dir: Path, listener: socket.socket, lifeline: int, access: Access) -> subprocess.Popen[bytes]:
    orders = _Orders(
        run_dir=str(run_dir),
        listener=listener.fileno(),
        lifeline=lifeline,
        names=access.names,
        authority=str(access.authority) if access.authority else None,
        certificate=str(access.pair.certificate) if access.pair else None,
        key=str(access.pair.key) if access.pair else None,
    )
    return subprocess.Popen(
        [sys.executable, "-m", __name__, msgspec.json.encode(orders).decode()],
        pass_fds=(listener.fileno(), lifeline),
        stdin=subprocess.DEVNULL,
        # Ctrl-C is for the coordinator; the page ends after it.
        start_new_session=True,
    )


def _report_end(process: subprocess.Popen[bytes], ending: threading.Event) -> None:
    code = process.wait()
    if not ending.is_set():
        log.warning("the page has ended with code %d; the run goes on without it", code)


def main(argv: list[str]) -> int:
    """Serve the page until the lifeline's other end is gone."""
    orders = msgspec.json.decode(argv[0], type=_Orders)
    logs.set_up()
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, args=(orders.lifeline,), daemon=True).start()
    pair = Pair(Path(orders.certificate), Path(orders.key)) if orders.certificate and orders.key else None
    access = Access(orders.names, Path(orders.authority) if orders.authority else None, pair)
    serve(Path(orders.run_dir), socket.socket(fileno=orders.listener), access)
    return 0


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    # Nothing here needs to be saved, and a stuck stream must not keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
