"""Drives the pure state machine: holds the run's state, feeds it events, runs its commands in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sparsyedge.coordinator.fleet.round_effects import RoundEffects
from sparsyedge.coordinator.fleet.update_effects import UpdateEffects
from sparsyedge.coordinator.fleet.uploads import Uploads
from sparsyedge.coordinator.fleet.waiting_notes import WaitingNotes
from sparsyedge.coordinator.fleet.waiting_offers import WaitingOffers
from sparsyedge.coordinator.record.store import RunOutcome
from sparsyedge.coordinator.rounds import events
from sparsyedge.coordinator.rounds.grants import asked_until
from sparsyedge.coordinator.rounds.stages import Closing, Open, RunState, Waiting
from sparsyedge.coordinator.rounds.state_machine import advance

__all__ = ["RoundDriver"]


class RoundDriver:
    """Current state of a run, and its outcome once it has ended."""

    def __init__(
        self,
        state: RunState,
        rounds: RoundEffects,
        updates: UpdateEffects,
        *,
        uploads: Uploads,
        notes: WaitingNotes,
        clock: Callable[[], float],
    ) -> None:
        self.state = state
        self.outcome: RunOutcome | None = None
        self.reason = ""
        """Why the run failed."""
        self.holds: Callable[[], bool] = lambda: False
        """Asked when a round has closed: whether the next one must wait, for a pause or an evaluation round."""
        self._rounds = rounds
        self._updates = updates
        self._uploads = uploads
        self._notes = notes
        self._waiting = WaitingOffers()
        self._clock = clock

    def take_up(self) -> None:
        """Resume where an earlier process left the run: in a round it opened, or after one it closed.

        Does nothing for a new run.
        """
        stage = self.state.stage
        if isinstance(stage, Open):
            self._rounds.resume(stage)
            self.feed(events.Tick())
        elif isinstance(stage, Closing):
            self.feed(self._rounds.model_ready())

    def feed(self, event: events.Event) -> None:
        """Feed an event to the state machine, then every event that its commands lead to.

        The owner calls `settle` soon after: updates are not acknowledged before that.
        """
        stage = self.state.stage
        if isinstance(event, events.OfferReceived) and isinstance(stage, Open):
            # Until it is answered.
            self._waiting.put(event, until_s=asked_until(stage, self._clock()))
        has_room = self._advance(event)
        if isinstance(event, events.DeviceOffline) and event.device not in self.state.online:
            # It asks again when it is back.
            self._waiting.remove(event.device)
        if isinstance(event, events.OfferReceived) and not self._may_wait(event.device):
            self._waiting.remove(event.device)
        while has_room and (waiting := self._waiting.first(self._clock())):
            # As if the device had asked again just now.
            self._advance(waiting)
            has_room = waiting.device not in self._waiting

    def _advance(self, event: events.Event) -> bool:
        """Feed an event and those that follow from it; returns whether an upload place may have become free."""
        before, freed = self.state.stage, False
        pending = deque([event])
        while pending:
            current = pending.popleft()
            freed |= isinstance(current, events.UpdateVerified | events.UpdateInvalid)
            self.state, commands = advance(self.state, current, self._clock())
            for command in commands:
                follows = self._carry_out(command)
                if isinstance(follows, events.ModelReady) and self.holds():
                    pending.append(events.PauseRequested())
                if follows is not None:
                    pending.append(follows)
        stage = self.state.stage
        self._uploads.keep_only(
            stage.granted if isinstance(stage, Open) else {}, concerned=getattr(event, "device", None)
        )
        if not isinstance(stage, Open):
            self._waiting.clear()
            if isinstance(stage, Waiting) and stage is not before:
                self._notes.mark()
        return freed

    def _may_wait(self, device: str) -> bool:
        """Whether to call a device that has no answer yet; not if it has a place, or wasted one."""
        stage = self.state.stage
        return isinstance(stage, Open) and device not in stage.granted and device not in stage.wasted

    def settle(self, *, is_idle: bool) -> None:
        """Make what happened durable, then tell the devices; `is_idle` says that no message is waiting.

        While messages keep coming, changes of the cohort are announced once a second: every device reads all of it.
        """
        stage = self.state.stage
        if isinstance(stage, Open):
            self._rounds.announce_members(stage, is_idle=is_idle)
        self._updates.settle()
        self._notes.settle(self.state)

    def _carry_out(self, command: events.Command) -> events.Event | None:
        if isinstance(command, events.AskToWait) and command.again_s is not None:
            # It keeps its turn. Being passed over is no news.
            if self._waiting.tell(command.device):
                self._updates.ask_to_wait(command)
            return None
        if isinstance(command, events.GrantUpload | events.AskToWait | events.Accept | events.Refuse):
            # It has its answer.
            self._waiting.remove(command.device)
        match command:
            case events.OpenRound():
                self._rounds.open(command)
            case events.ExtendRound():
                self._rounds.extend(command)
            case events.ReplaceMember():
                self._rounds.replace_member(command)
            case events.Quarantine():
                self._rounds.quarantine(command)
            case events.CloseRound():
                # Closing takes a while: answer first.
                self._updates.settle()
                self._notes.show(self.state)
                return self._rounds.close(command)
            case events.GrantUpload():
                self._updates.grant(command)
            case events.AskToWait():
                self._updates.ask_to_wait(command)
            case events.VerifyUpdate():
                return self._updates.verify(command)
            case events.Accept():
                stage = self.state.stage
                if isinstance(stage, Open):
                    self._rounds.record_members(stage, for_device=command.device)
                self._updates.accept(command)
            case events.Refuse():
                self._updates.refuse(command)
            case events.FinishRun():
                done = self.state.closed_round == self.state.plan.rounds
                self.outcome = "finished" if done else "stopped"
            case events.FailRun():
                self.outcome, self.reason = "failed", command.reason
        return None
