"""Decides whether to grant an offer, and gives the reason if not. Pure."""

from __future__ import annotations

from sparsyedge.coordinator.rounds.events import OfferReceived, RefusalKind
from sparsyedge.coordinator.rounds.stages import Closing, Failed, Finished, Open, Plan, Stage, Waiting

__all__ = ["describe", "reason_to_refuse"]

MAX_INVALID = 3
"""Invalid updates allowed per device and round; after that we refuse its offers."""


def reason_to_refuse(plan: Plan, stage: Stage, event: OfferReceived) -> tuple[RefusalKind, str] | None:
    """Why to refuse the offer, judged by the offer alone; None if it looks fine."""
    device, offer = event.device, event.offer
    if offer.run != plan.run:
        return RefusalKind.FOREIGN, f"the update is for run {offer.run}, the fleet works on run {plan.run}"
    if not isinstance(stage, Open) or stage.round != offer.round:
        return RefusalKind.LATE, f"round {offer.round} is not open: {describe(stage)}"
    if device not in stage.deadlines:
        return RefusalKind.NOT_ASKED, f"device {device} is not in the cohort of round {stage.round}"
    if device in stage.accepted:
        return RefusalKind.REPEATED, (
            f"update {stage.accepted[device][:12]} of device {device} is already accepted "
            f"for round {stage.round}, this one is {offer.update.sha256[:12]}"
        )
    if stage.failed.get(device, 0) >= MAX_INVALID:
        return RefusalKind.REPEATED, f"{MAX_INVALID} updates of device {device} were refused in this round"
    if offer.base != stage.model:
        started = f"the update starts from model {offer.base[:12]}, round {stage.round} from {stage.model[:12]}"
        return RefusalKind.FOREIGN, started
    if offer.update.bytes > plan.max_update_bytes:
        size = f"the update has {offer.update.bytes} bytes, at most {plan.max_update_bytes} are allowed for this model"
        return RefusalKind.TOO_LARGE, size
    return None


def describe(stage: Stage) -> str:
    """The run's stage, as half a sentence."""
    match stage:
        case Waiting():
            return f"round {stage.round} waits for devices"
        case Open():
            return f"round {stage.round} is"
        case Closing():
            return f"round {stage.round} has just closed"
        case Finished():
            return "the run is finished"
        case Failed():
            return "the run has failed"
