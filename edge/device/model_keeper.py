"""Keeps a device's model for predictions in step with its fleet: fetches it when idle, puts it in place in a thread.

Training comes first. The device's main thread fetches a model only while it has nothing else to do, and never waits for
the thread that writes the files, unless the device is about to leave.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import UNSET

from sparsyedge.edge.config import DeviceConfig
from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.device.model_hook import ModelHook
from sparsyedge.edge.device.model_place import Candidate, ModelPlace
from sparsyedge.edge.device.task_inputs import TaskInputs
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.inference.model_note import ModelKind
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.messages import HeldModel, RoundTask
from sparsyedge.edge.tensors import State, global_sparsity, model_id

__all__ = ["ModelKeeper"]

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""How long to wait after a model could not be fetched."""
SILENCE_S = 30.0
"""How long a fetch goes on without a byte. Nobody publishes after a run; the broker has the chunks or lacks them."""


class ModelKeeper:
    """Puts the fleet's model, and this device's own, where programs on this machine find them."""

    def __init__(self, config: DeviceConfig, work_dir: Path, courier: Courier) -> None:
        self._when = config.model
        self.is_personalised = config.personalised
        """Whether to call `keep_own`."""
        self._courier = courier
        hook = ModelHook(config.on_model, limit_s=config.on_model_limit_s) if config.on_model else None
        self._places: dict[ModelKind, ModelPlace] = {
            "global": ModelPlace(work_dir, "global", device=config.id, threads=config.threads, hook=hook),
            "personal": ModelPlace(work_dir, "personal", device=config.id, threads=config.threads),
        }
        self._hook = hook
        self._writer = _Writer(self._places)
        self._again_s = 0.0
        self._trouble = ""
        """Why the last fetch failed; logged once."""

    def begin(self) -> None:
        """Tell the coordinator and the user's command about a model that an earlier process put in place."""
        if self._when != "off":
            self._places["global"].announce()
            self._courier.holds = self._places["global"].held

    def follow(self, task: RoundTask, inputs: TaskInputs, *, keep_going: Callable[[], bool]) -> None:
        """Fetch the task's model and have it put in place, if this device wants it and lacks it.

        Gives up as soon as `keep_going` says no, or the coordinator announces another model.
        """
        if not self._wants(task):
            return
        try:
            artifacts = inputs.inference_artifacts(task, wanted=self._wanted(task, keep_going))
            state = inputs.model(task, artifacts, wanted=self._wanted(task, keep_going))
        except Abandoned:
            self._again_s = time.monotonic() + RETRY_S
            return
        except (SparsyedgeError, OSError) as error:
            self._again_s = time.monotonic() + RETRY_S
            if str(error) != self._trouble:
                log.warning("cannot get the model of run %s: %s; trying again", task.run, error)
            self._trouble = str(error)
            return
        self._trouble = ""
        self._writer.put("global", Candidate(state, artifacts, _origin(task, state, artifacts), task.model_id))

    def keep_own(self, task: RoundTask, artifacts: Artifacts, state: State) -> None:
        """Have the device's own model put in place, right after it was trained and pruned; the caller drops it."""
        sparsity = global_sparsity(state, artifacts.manifest.prunable)
        origin = Origin(run=task.run, round=task.round, sparsity=sparsity)
        self._writer.put("personal", Candidate(state, artifacts, origin, model_id(state)))

    def news(self) -> bool:
        """Whether the model in place has changed since the last call; the courier knows about it then."""
        held = self._places["global"].held
        if held == self._courier.holds:
            return False
        self._courier.holds = held
        return True

    def finish(self) -> None:
        """Wait until everything is in place and the user's command is done."""
        self._writer.finish()
        if self._hook:
            self._hook.finish()

    def stop(self) -> None:
        """End the user's command; a version that is being written is dropped with the process."""
        if self._hook:
            self._hook.stop()

    def _wants(self, task: RoundTask) -> bool:
        if self._when == "off" or (self._when == "last" and task.state != "finished"):
            return False
        if task.model_round is UNSET or not task.model_round:
            return False
        known = self._writer.latest or self._places["global"].held
        is_known = known is not None and (known.run, known.model_id) == (task.run, task.model_id)
        return not is_known and time.monotonic() >= self._again_s

    def _wanted(self, task: RoundTask, keep_going: Callable[[], bool]) -> Callable[[], bool]:
        """Whether the fetch should go on: the model is still the latest one, and bytes keep coming."""
        received, since_s = self._courier.bytes_down, time.monotonic()

        def wanted() -> bool:
            nonlocal received, since_s
            if self._courier.bytes_down != received:
                received, since_s = self._courier.bytes_down, time.monotonic()
            latest = self._courier.task
            is_latest = latest is not None and (latest.run, latest.model_id) == (task.run, task.model_id)
            return is_latest and keep_going() and time.monotonic() - since_s < SILENCE_S

        return wanted


class _Writer:
    """A thread that puts models in place, as long as there are any; of each kind, only the latest one counts."""

    def __init__(self, places: dict[ModelKind, ModelPlace]) -> None:
        self.latest: HeldModel | None = None
        """The last global model that it got."""
        self._places = places
        self._lock = threading.Lock()
        self._waiting: dict[ModelKind, Candidate] = {}
        self._thread: threading.Thread | None = None

    def put(self, kind: ModelKind, candidate: Candidate) -> None:
        """Have a model put in place soon."""
        if kind == "global":
            self.latest = candidate.held
        with self._lock:
            self._waiting[kind] = candidate
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="model", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait until nothing is left to do."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                kind, candidate = self._waiting.popitem()
            try:
                self._places[kind].put(candidate)
            except (SparsyedgeError, OSError) as error:
                log.warning("the model of round %d is not in place: %s", candidate.origin.round, error)
            except Exception:
                # The device must go on training whatever happens here.
                log.exception("the model of round %d is not in place", candidate.origin.round)
            del candidate


def _origin(task: RoundTask, state: State, artifacts: Artifacts) -> Origin:
    """Where a task's model comes from, in the coordinator's words."""
    assert task.model_round is not UNSET
    if task.quality is UNSET:
        sparsity = global_sparsity(state, artifacts.manifest.prunable)
        return Origin(run=task.run, round=task.model_round, sparsity=sparsity)
    found = task.quality
    return Origin(
        run=task.run,
        round=task.model_round,
        accuracy=found.accuracy,
        rmse=found.rmse,
        r_squared=found.r_squared,
        sparsity=found.sparsity,
    )
