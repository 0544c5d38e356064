"""Makes the plan of a run, fixed for all rounds, from its config and artifacts."""

from __future__ import annotations

from msgspec import UNSET

from sparsyedge.coordinator.aggregation.update_checks import max_update_bytes
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.rounds.cohort import POLICIES, Policy
from sparsyedge.coordinator.rounds.stages import Plan
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.protocol.messages import MAX_CLASSES

__all__ = ["check_selection", "check_warmup", "plan_of"]

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
        seed=config.cohort_seed,
        max_update_bytes=largest,
        # Room for several: one slow upload must not block the others.
        upload_bytes=min(MAX_UPLOAD_BYTES, max(MIN_UPLOAD_BYTES, UPLOADS_AT_A_TIME * largest)),
        policy=config.selection,
        over_selection=config.over_selection,
        shares=manifest.method.shares,
        first_round=first_round,
        takes_turns=takes_turns,
    )


def check_selection(selection: Policy, manifest: Manifest) -> None:
    """Raise ConfigError if cohorts of this model's devices cannot be picked so."""
    if selection != "balanced":
        return
    why = ""
    if manifest.task != "classes":
        why = "it evens out classes, and the model is a regression"
    elif manifest.classes > MAX_CLASSES:
        why = f"devices tell at most {MAX_CLASSES} classes, and the model has {manifest.classes}"
    elif manifest.method.shares:
        why = "the groups of `method.shares` have places of their own in every cohort"
    if why:
        allowed = ", ".join(f'"{policy}"' for policy in POLICIES if policy != selection)
        raise ConfigError(f'key `selection` has value "balanced": {why}; allowed are {allowed}')


def check_warmup(rounds: int, method: Method) -> None:
    """Raise ConfigError if a run ends before its method prunes any inputs."""
    if method.activation_warmup is not UNSET and method.activation_warmup >= rounds:
        raise ConfigError(
            f"key `method.activation_warmup` has value {method.activation_warmup}: the run has `rounds` = {rounds}, so "
            f"inputs would never be pruned; allowed are 1 to {rounds - 1}, or a method that does not prune them, such "
            f"as sparsyfed-no-act"
        )
