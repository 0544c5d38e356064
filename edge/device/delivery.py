"""Delivers the update in the outbox, the last phase of a round, and records the coordinator's verdict."""

from __future__ import annotations

import logging
import os
import time

import msgspec

from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.device.energy import EnergyMeter, PhaseRecorder, peak_rss_mb
from sparsyedge.edge.device.job_notices import JobNotices
from sparsyedge.edge.device.outbox import Outbox
from sparsyedge.edge.device.report_line import describe
from sparsyedge.edge.device.round_watch import RoundWatch
from sparsyedge.edge.device.waiting_log import WaitingLog
from sparsyedge.edge.protocol.messages import Accepted, Refused, RoundTask

__all__ = ["Delivery"]

log = logging.getLogger(__name__)

VERDICT_S = 10.0
"""How long a device keeps asking for the verdict on an update from an earlier round."""


class Delivery:
    """Offers the pending update until the coordinator accepts or refuses it."""

    def __init__(
        self,
        courier: Courier,
        outbox: Outbox,
        meter: EnergyMeter,
        watch: RoundWatch,
        *,
        notices: JobNotices,
        waiting: WaitingLog,
    ) -> None:
        self.settled: str | None = None
        """The key of the last task with a verdict."""
        self._courier = courier
        self._outbox = outbox
        self._meter = meter
        self._watch = watch
        self._notices = notices
        self._waiting = waiting

    def deliver(self, task: RoundTask) -> bool:
        """Upload the pending update and send the final report; returns whether the coordinator accepted it.

        Raises Abandoned when the round ends first.
        """
        pending = self._outbox.pending
        assert pending is not None
        recorder = PhaseRecorder(self._meter, on_phase=self._notices.note_phase)
        with recorder.phase("upload"):
            verdict = self._courier.deliver(
                pending.offer, self._outbox.frame(), wanted=lambda: self._is_wanted(task, pending.offer.update.bytes)
            )
        self.settled = pending.key
        before = pending.offer.report
        report = msgspec.structs.replace(
            before,
            phases={**before.phases, **recorder.snapshot()},
            bytes_up=self._courier.bytes_up,
            peak_rss_mb=peak_rss_mb(),
            pid=os.getpid(),
        )
        log.info("%s", describe(report))
        self._note(verdict)
        if isinstance(verdict, Accepted):
            self._courier.report(report)
        return isinstance(verdict, Accepted)

    def _is_wanted(self, task: RoundTask, update_bytes: int) -> bool:
        """Tell whether the round still takes the update; says so if it has to wait for its turn."""
        if self._courier.unanswered_s:
            size = f"{update_bytes / 1e6:.2f} MB"
            what = f"round {task.round}: waiting for a place to upload the update of {size}"
            self._waiting.note(f"upload {task.round}", what)
        else:
            self._waiting.over()
        return self._watch.is_open(task)

    def resolve_doubt(self, task: RoundTask) -> None:
        """Offer the last update again if its verdict was lost: its residual counts only if it was averaged."""
        if not self._outbox.is_in_doubt(task):
            return
        pending = self._outbox.pending
        assert pending is not None
        until_s = time.monotonic() + VERDICT_S
        try:
            verdict = self._courier.deliver(
                pending.offer,
                self._outbox.frame(),
                wanted=lambda: self._watch.is_open(task) and time.monotonic() < until_s,
            )
        except Abandoned:
            log.info("round %d: no word about the update of round %d", task.round, pending.offer.round)
            return
        self._note(verdict)

    def _note(self, verdict: Accepted | Refused) -> None:
        if isinstance(verdict, Accepted):
            # The update stays on disk until the next one replaces it: if the device restarts within this round, it
            # offers the update again, and the coordinator confirms that it has it.
            self._outbox.accept()
        else:
            log.warning("round %d: the coordinator refused the update: %s", verdict.round, verdict.reason)
            self._outbox.refuse()
