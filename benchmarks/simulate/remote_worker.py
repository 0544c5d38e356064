"""What runs on the machines of a cluster: a store per machine, and workers that play devices.

Nothing here knows what carries the calls. A worker has two: `take` hands it messages, `collect` waits for its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import traceback
from collections import deque
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.simulate.device_folders import FileChanges, LentFolder, TurnFiles
from sparsyedge.benchmarks.simulate.pipe import Carry, Done, Message, Publish, Subscribe, Turn, Unsubscribe, encode
from sparsyedge.benchmarks.simulate.simulated_device import Setup
from sparsyedge.benchmarks.simulate.worker import play_turns
from sparsyedge.edge.commands import logs

__all__ = ["Begin", "Broken", "NodeStore", "RemoteWorker", "Sent", "SharedCarry", "decode_sent"]

MAX_REASON = 2000


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """To a worker: a turn, with the device's files; the frames of its models come beside it, in the same order."""

    device: str
    files: dict[str, bytes]
    models: list[str]
    known: list[str]
    """The models whose frames need not come back."""


class SharedCarry(msgspec.Struct, frozen=True, tag="shared"):
    """To a worker: a `Carry` whose payload comes beside it, since many workers get the same."""

    topic: str
    retained: bool


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """From a worker: it has failed."""

    reason: str


Sent = Publish | Subscribe | Unsubscribe | Done | FileChanges | Broken
_TAKEN: msgspec.msgpack.Decoder[Begin | SharedCarry | Carry] = msgspec.msgpack.Decoder(Begin | SharedCarry | Carry)
_SENT: msgspec.msgpack.Decoder[Sent] = msgspec.msgpack.Decoder(Sent)


def decode_sent(content: bytes) -> Sent:
    """A message of a worker."""
    return _SENT.decode(content)


class NodeStore:
    """A folder on one machine with what all of its workers read: data and artifacts."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sparsyedge-"))

    def folder(self) -> str:
        """Where it is; answers as long as the machine lives."""
        return str(self._folder)

    def append(self, name: str, piece: memoryview) -> None:
        """Add to a file, which begins empty."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(piece)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Mailbox:
    """The pipe of a worker whose hub is on another machine; what it sends is preceded by changes of files."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._incoming: deque[bytes] = deque()
        self._outgoing: deque[bytes] = deque()
        self.folder: LentFolder | None = None

    def poll(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._incoming), timeout)

    def recv_bytes(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._incoming))
            return self._incoming.popleft()

    def send_bytes(self, buf: bytes) -> None:
        changes = self.folder.changes() if self.folder is not None else None
        with self._changed:
            if changes is not None:
                self._outgoing.append(msgspec.msgpack.encode(changes))
            self._outgoing.append(buf)
            self._changed.notify_all()

    def put(self, message: Message) -> None:
        """The hub's message."""
        with self._changed:
            self._incoming.append(encode(message))
            self._changed.notify_all()

    def collect(self) -> list[bytes]:
        """Everything sent; waits until there is something."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._outgoing))
            sent = list(self._outgoing)
            self._outgoing.clear()
            return sent


class RemoteWorker:
    """Plays one device after another in a thread of its own, with one session."""

    def __init__(self, setup: bytes, artifacts: str) -> None:
        """`setup` is a Setup as JSON, with the paths of this machine."""
        logs.set_up()
        logs.name_lines(f"worker {os.getpid()}")
        self._setup = msgspec.json.decode(setup, type=Setup)
        self._artifacts = Path(artifacts)
        self._mailbox = Mailbox()
        self._order = threading.Lock()
        self._next = 0
        self._early: dict[int, tuple[bytes, tuple[bytes, ...]]] = {}
        threading.Thread(target=self._play, name="simulate-worker", daemon=True).start()

    def take(self, number: int, content: bytes, *blobs: bytes) -> None:
        """The hub's message `number`; calls may overtake each other."""
        with self._order:
            self._early[number] = (content, blobs)
            while (found := self._early.pop(self._next, None)) is not None:
                self._next += 1
                try:
                    self._handle(*found)
                except Exception as error:
                    self._break(error)

    def is_up(self) -> bool:
        """Answers once the worker runs."""
        return True

    def collect(self) -> list[bytes]:
        """What the worker has sent since the last call; waits for something."""
        return self._mailbox.collect()

    def _handle(self, content: bytes, blobs: tuple[bytes, ...]) -> None:
        match _TAKEN.decode(content):
            case Begin(device, files, models, known):
                if self._mailbox.folder is not None:
                    self._mailbox.folder.remove()
                folder = LentFolder(Path(self._setup.devices_dir) / device, artifacts=self._artifacts)
                folder.fill(TurnFiles(files, models), list(blobs), known=frozenset(known))
                self._mailbox.folder = folder
                self._mailbox.put(Turn(device))
            case SharedCarry(topic, retained):
                self._mailbox.put(Carry(topic, blobs[0], retained))
            case Carry() as carry:
                self._mailbox.put(carry)

    def _play(self) -> None:
        try:
            play_turns(self._mailbox, self._setup)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        logging.getLogger(__name__).error("this worker has failed", exc_info=error)
        reason = "".join(traceback.format_exception_only(error)).strip()
        self._mailbox.folder = None
        self._mailbox.send_bytes(msgspec.msgpack.encode(Broken(reason[:MAX_REASON])))
