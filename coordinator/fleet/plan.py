"""Makes the plan of a run, fixed for all rounds, from its config and artifacts."""

from __future__ import annotations

from sparsyedge.coordinator.aggregation.update_checks import max_update_bytes
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.rounds.stages import Plan
from sparsyedge.edge.model.artifacts import Manifest

__all__ = ["plan_of"]

MAX_UPLOAD_BYTES = 32 << 20
"""Limit for all uploads in flight, however many devices there are: half of a link's inbox."""
MIN_UPLOAD_BYTES = 4 << 20
UPLOADS_AT_A_TIME = 4


def plan_of(config: RunConfig, manifest: Manifest, *, first_round: int, takes_turns: bool = False) -> Plan:
    """Make the plan; `first_round` is the round that waits for `min_devices`."""
    largest = max_update_bytes(manifest)
    return Plan(
        run=config.name,
        rounds=config.rounds,
        cohort_size=config.cohort_size,
        min_updates=config.updates_needed,
        min_devices=config.devices_needed,
        deadline_s=config.deadline_s,
        seed=config.seed,
        max_update_bytes=largest,
        # Room for several: one slow upload must not block the others.
        upload_bytes=min(MAX_UPLOAD_BYTES, max(MIN_UPLOAD_BYTES, UPLOADS_AT_A_TIME * largest)),
        policy=config.selection,
        over_selection=config.over_selection,
        shares=manifest.method.shares,
        first_round=first_round,
        takes_turns=takes_turns,
    )
