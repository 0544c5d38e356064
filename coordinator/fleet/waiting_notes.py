"""Tells the log and live.sqlite what the run waits for.

The observer hears it when the subject changes, otherwise once a minute; the live record is written every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from sparsyedge.coordinator.fleet.activities import Activities
from sparsyedge.coordinator.fleet.live_file import LiveFile, own_costs
from sparsyedge.coordinator.record.live import Present
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.situation import Heard, Situation, situation_of
from sparsyedge.coordinator.rounds.stages import Open, RunState, Waiting
from sparsyedge.edge.protocol.channel import Health
from sparsyedge.edge.text import duration

__all__ = ["WaitingNotes"]

REMIND_S = 60.0
CHANGE_S = 10.0
"""How often a change in an open round is worth a line; others come with the minute."""
BROKER_S = 5.0
"""A broker that is gone for less than this is not worth a word."""
SHARE = 0.01
"""The most of its time that the leader spends on the live record, however large the cohort."""


class WaitingNotes:
    """Remembers why each unfit device does not train, what it has told, and when."""

    def __init__(
        self,
        observer: Observer,
        activities: Activities,
        *,
        clock: Callable[[], float],
        live: LiveFile | None = None,
        health: Callable[[], Health] = Health,
        workers: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Without `live`, only the observer is told."""
        self.activities = activities
        self._observer = observer
        self._live = live
        self._health = health
        self._workers = workers
        self._clock = clock
        self._unfit: dict[str, str] = {}
        self._told_s = clock()
        self._subject: tuple[object, ...] = ()
        self._has_changed = False
        self._show_s = 0.0
        """When to write the live record next, on the wall."""

    # ---- what devices say about themselves ---------------------------------------------------------------------------

    def reason(self, device: str) -> str:
        """Why a device does not train; empty if it is fit."""
        return self._unfit.get(device, "")

    def note_fitness(self, device: str, reason: str) -> None:
        """Remember why a device does not train, empty if it is fit; tells the observer about a new reason."""
        if self._unfit.pop(device, "") != reason and reason:
            self._observer.device_unfit(device=device, reason=reason)
        if reason:
            self._unfit[device] = reason

    # ---- what the run waits for --------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Note that the number of devices may have changed."""
        self._has_changed = True

    def settle(self, state: RunState) -> None:
        """Tell it once, however many came and went."""
        if self._has_changed:
            self._has_changed = False
            self.tell(state)

    def tell(self, state: RunState) -> None:
        """Tell the observer what a round waits for to open, unless it knows."""
        if isinstance(state.stage, Waiting) and (situation := self._look(state)).subject != self._subject:
            self._tell(situation, self._clock())

    def restart(self) -> None:
        """Restart the minute: the observer just got an update."""
        self._told_s = self._clock()

    def show(self, state: RunState) -> None:
        """Write the live record now: what follows takes a while."""
        if self._live is not None:
            self._show(self._live, state, self._look(state))

    def say(self, sentence: str) -> None:
        """Write a sentence of the owner's into the live record."""
        if self._live is not None:
            self._live.say(sentence)

    def remind(self, state: RunState, now_s: float) -> None:
        """Keep the live record up to date, and the observer informed."""
        since_s, started_s = now_s - self._told_s, time.monotonic()
        if since_s < REMIND_S and (self._live is None or started_s < self._show_s):
            return
        situation = self._look(state)
        has_news = situation.subject != self._subject and bool(situation.subject) and since_s >= CHANGE_S
        if since_s >= REMIND_S or (has_news and self._is_about_somebody(situation)):
            self._tell(situation, now_s)
        elif has_news:
            # Who came back is no news, but is if it leaves again.
            self._subject = situation.subject
        if self._live is not None and started_s >= self._show_s:
            self._show(self._live, state, situation)
            self._show_s = started_s + (time.monotonic() - started_s) / SHARE

    def _is_about_somebody(self, situation: Situation) -> bool:
        """Whether an open round waits for anything else than members at work."""
        return situation.stage != "open" or bool(situation.subject[-1])

    def _look(self, state: RunState) -> Situation:
        """Describe the present moment; goes through the members of an open round."""
        now_s = self._clock()
        activities = self.activities
        activities.keep_only(state)
        heard = Heard(activities.get, activities.left_s, self._unfit)
        situation = situation_of(state, heard, now_s=now_s, unix_s=time.time())
        health = self._health()
        if health.down_s < BROKER_S:
            return situation
        sentence = f"the coordinator waits for the broker at {health.broker}, gone for {duration(health.down_s)}"
        return Situation(
            situation.round,
            situation.stage,
            f"{sentence}; {situation.sentence}",
            until=situation.until,
            have=situation.have,
            need=situation.need,
            subject=("broker", situation.round, 1),
        )

    def _tell(self, situation: Situation, now_s: float) -> None:
        self._subject, self._told_s = situation.subject, now_s
        self._observer.waiting(situation)

    def _show(self, live: LiveFile, state: RunState, situation: Situation) -> None:
        in_round = situation.stage in ("open", "closing")
        uploads, offers_waiting = self._uploads(state)
        cpu_s, rss_bytes = own_costs(self._workers())
        live.show(
            Present(
                round=situation.round,
                stage=situation.stage,
                sentence=situation.sentence,
                until=situation.until,
                online=len(state.online),
                accepted=situation.have if in_round else 0,
                cohort=situation.need if in_round else 0,
                uploads=uploads,
                offers_waiting=offers_waiting,
                inbox_messages=self._health().backlog,
                cpu_s=cpu_s,
                rss_bytes=rss_bytes,
                at=time.time(),
            ),
            self.activities,
        )

    def _uploads(self, state: RunState) -> tuple[int, int]:
        """How many devices upload, and how many wait for a place."""
        stage, now_s = state.stage, self._clock()
        if not isinstance(stage, Open):
            return 0, 0
        return len(stage.granted), sum(now_s <= until_s for until_s in stage.asked.values())
