"""Starts a device from its newest slot, and goes back to the one before if that does not come online.

    python3 -I launch.py SLOTS FACTORY ARGUMENTS...

SLOTS is a folder that the device may write to, FACTORY the environment that was installed first, ARGUMENTS those of
`sparsyedge edge`. A copy of this file lies outside of both slots and is never upgraded, so it works however broken a
new version is. It needs nothing but Python's standard library.

    slots/a, slots/b    environments; an upgrade goes to the one that is not in use
    slots/current       a link to the slot in use; without it, FACTORY is in use
    slots/trial.json    there while the slot in use is on trial; the device removes it once it is acknowledged
    slots/returned.json why we went back last
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

EXIT_SWITCHED = 75
"""The device has switched slots: start it again at once."""
FOLDER_VARIABLE = "SPARSYEDGE_SLOTS"
SLOT_VARIABLE = "SPARSYEDGE_SLOT"
FACTORY = "factory"
SLOTS = ("a", "b")
TRIAL_NAME = "trial.json"
RETURNED_NAME = "returned.json"
POLL_S = 0.2
GRACE_S = 20.0
"""How long a device has to stop before it is killed."""


@dataclass(frozen=True)
class Trial:
    """A slot that has not proven itself yet."""

    slot: str
    previous: str
    bundle: str
    boots_left: int
    limit_s: float
    """How long each start may take to be acknowledged."""
    reason: str = "did not start"
    """Why the last start failed."""


def read_trial(folder: Path) -> Trial | None:
    """The trial under way. A file that cannot be read becomes a trial that is lost, back to the factory's slot."""
    try:
        text = (folder / TRIAL_NAME).read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        text = ""
    try:
        found = json.loads(text)
        trial = Trial(**{name: found[name] for name in Trial.__dataclass_fields__ if name in found})
        if trial.slot in SLOTS and trial.previous in (*SLOTS, FACTORY) and trial.boots_left + trial.limit_s >= 0:
            return trial
    except (ValueError, TypeError, RecursionError):
        pass
    return Trial(current_slot(folder), FACTORY, "", 0, 0.0, "its trial file is damaged")


def write_file(path: Path, content: object) -> None:
    """Write JSON that is whole or absent, also after a power cut."""
    unfinished = path.with_name(f".{path.name}.new")
    with unfinished.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync(path.parent)


def write_trial(folder: Path, trial: Trial) -> None:
    """Begin a trial, or note how it goes."""
    write_file(folder / TRIAL_NAME, asdict(trial))


def current_slot(folder: Path) -> str:
    """The name of the slot in use."""
    try:
        name = (folder / "current").readlink().name
    except OSError:
        return FACTORY
    return name if name in SLOTS else FACTORY


def switch(folder: Path, slot: str) -> None:
    """Put a slot in use, at once or not at all."""
    link = folder / "current"
    if slot == FACTORY:
        link.unlink(missing_ok=True)
    else:
        new = folder / ".current.new"
        new.unlink(missing_ok=True)
        new.symlink_to(slot)
        new.replace(link)
    sync(folder)


def sync(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_boot(folder: Path) -> Trial | None:
    """Count a start of the slot on trial, and go back first if none is left; returns the trial of this start."""
    trial = read_trial(folder)
    if trial is None:
        return None
    if trial.slot != current_slot(folder):
        # Died before it switched, or while going back: either way nothing is on trial.
        end_trial(folder)
        return None
    if trial.boots_left <= 0:
        go_back(folder, trial)
        return None
    trial = replace(trial, boots_left=trial.boots_left - 1)
    write_trial(folder, trial)
    return trial


def go_back(folder: Path, trial: Trial) -> None:
    """Put the slot from before the trial in use again, and leave word of why."""
    say(f"goes back to slot {trial.previous}: slot {trial.slot} {trial.reason}")
    write_file(folder / RETURNED_NAME, {"bundle": trial.bundle, "reason": trial.reason})
    switch(folder, trial.previous)
    end_trial(folder)


def end_trial(folder: Path) -> None:
    """Remove the trial file."""
    (folder / TRIAL_NAME).unlink(missing_ok=True)
    sync(folder)


class Launcher:
    """Runs one device after the other, until one ends for good or a signal comes."""

    def __init__(self, folder: Path, factory: Path, arguments: list[str]) -> None:
        self._folder = folder
        self._factory = factory
        self._arguments = arguments
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        while True:
            trial = take_boot(self._folder)
            code = self._run_once(trial)
            if self._stopping and trial is not None and read_trial(self._folder) is not None:
                write_trial(self._folder, replace(trial, boots_left=trial.boots_left + 1))
            left = read_trial(self._folder)
            if self._stopping or (code != EXIT_SWITCHED and (trial is None or left is None)):
                # The shell's way to tell of a signal.
                return 128 - code if code < 0 else code
            if code != EXIT_SWITCHED:
                time.sleep(1.0)

    def _run_once(self, trial: Trial | None) -> int:
        slot = current_slot(self._folder)
        place = self._factory if slot == FACTORY else self._folder / slot
        if slot != FACTORY and trial is None and not os.access(place / "bin" / "python", os.X_OK):
            say(f"slot {slot} has no Python; starting {self._factory} instead")
            switch(self._folder, FACTORY)
            slot, place = FACTORY, self._factory
        variables = {FOLDER_VARIABLE: str(self._folder), SLOT_VARIABLE: slot}
        try:
            # -P: what lies in the working directory is not code. Its own group: signals come through us alone.
            self._child = subprocess.Popen(
                [place / "bin" / "python", "-P", "-m", "sparsyedge.edge", *self._arguments],
                env={**os.environ, **variables},
                process_group=0,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            self._note(trial, f"cannot be started: {error}")
            return 1
        code = self._watch(trial)
        if code != EXIT_SWITCHED and not self._stopping:
            self._note(trial, f"ended with code {code} before the coordinator had acknowledged it")
        return code

    def _watch(self, trial: Trial | None) -> int:
        """Wait for the device; end it if it is on trial for too long."""
        assert self._child is not None
        if self._stopping:
            self._child.terminate()
        until_s = time.monotonic() + trial.limit_s if trial else None
        while until_s is not None and self._child.poll() is None:
            if read_trial(self._folder) is None:
                until_s = None
            elif time.monotonic() > until_s and not self._stopping:
                self._give_up(f"was not acknowledged by the coordinator within {trial.limit_s:g} s" if trial else "")
                break
            time.sleep(POLL_S)
        return self._child.wait()

    def _give_up(self, reason: str) -> None:
        assert self._child is not None
        self._child.terminate()
        try:
            self._child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        trial = read_trial(self._folder)
        if trial is not None:
            write_trial(self._folder, replace(trial, boots_left=0, reason=reason))

    def _note(self, trial: Trial | None, reason: str) -> None:
        """Keep why a start of the trial failed; what ended it earlier is the better reason."""
        left = read_trial(self._folder)
        if trial is not None and left is not None and left.reason == trial.reason:
            write_trial(self._folder, replace(left, reason=reason))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def _end_with_parent() -> None:
    """In the child: have the kernel stop it if the launcher is killed, or two of one identity would run."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def say(sentence: str) -> None:
    """Tell the journal."""
    print(f"sparsyedge-launch: {sentence}", file=sys.stderr, flush=True)


def main() -> int:
    """Start the device that the command line names."""
    if len(sys.argv) < 3:
        say("usage: launch.py SLOTS FACTORY ARGUMENTS...")
        return 2
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Launcher(folder, Path(sys.argv[2]).absolute(), sys.argv[3:]).run()


if __name__ == "__main__":
    sys.exit(main())
