"""What a run is doing, in a sentence, for a page that may outlive the coordinator."""

from __future__ import annotations

import time
from typing import Any

from sparsyedge.coordinator.record.live import Present

__all__ = ["SILENT_S", "describe"]

SILENT_S = 30.0
"""A coordinator that has written nothing for so long is probably gone."""
SHOWN = 5


def describe(facts: dict[str, Any], present: Present | None, *, now: float, trouble: str) -> dict[str, Any]:
    """Return the run at a glance; `facts` are the store's, empty before there is one."""
    if not facts:
        return {"state": "starting", "sentence": trouble or "the run is being set up", "trouble": "", "actions": []}
    under_way = facts["state"] in ("running", "paused")
    heard_at = max(facts["seen_at"], present.at if present else 0.0)
    silent = under_way and now - heard_at > SILENT_S
    current = present if present and under_way and not silent else None
    keys = ("name", "fleet", "rounds", "round", "closed", "created_at", "files", "evaluations")
    shown = {key: facts[key] for key in keys}
    return {
        **shown,
        "state": "silent" if silent else facts["state"],
        "sentence": current.sentence if current else _sentence(facts, silent=silent, heard_at=heard_at),
        "until": current.until if current else None,
        "stage": current.stage if current else "",
        "online": current.online if current else None,
        "uploads": current.uploads if current else None,
        "offers_waiting": current.offers_waiting if current else None,
        "accepted": len(facts["accepted"]),
        "cohort": len(facts["cohort"]),
        "requests": facts["requests"],
        "actions": _actions(facts) if under_way and not silent else [],
        "heard_at": heard_at if silent else None,
        "trouble": trouble,
    }


def _actions(facts: dict[str, Any]) -> list[str]:
    if "stop" in facts["requests"]:
        return []
    return ["resume" if "pause" in facts["requests"] else "pause", "stop"]


def _sentence(facts: dict[str, Any], *, silent: bool, heard_at: float) -> str:
    """Say it from the store alone, where no coordinator says it."""
    closed, rounds = facts["closed"], facts["rounds"]
    if silent:
        at = time.strftime("%H:%M:%S on %Y-%m-%d", time.localtime(heard_at))
        return (
            f"the coordinator was last heard of at {at}, with {closed} of {rounds} rounds closed; "
            f"`sparsyedge coordinator run RUN.toml` goes on from there"
        )
    if facts["state"] not in ("running", "paused"):
        reason = f": {facts['reason']}" if facts["reason"] else ""
        return f"the run is {facts['state']}, {closed} of {rounds} rounds closed{reason}"
    if facts["is_open"]:
        missing = sorted(set(facts["cohort"]) - set(facts["accepted"]))
        if not missing:
            return f"round {facts['round']} is being closed: all {len(facts['cohort'])} updates are in"
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        names = ", ".join(missing[:SHOWN])
        return f"round {facts['round']} waits for {len(missing)} of {len(facts['cohort'])} devices: {names}{more}"
    if facts["state"] == "paused":
        return f"paused after round {closed} of {rounds}; it opens no round until somebody resumes it"
    return f"round {closed + 1} of {rounds} is about to open, or waits for devices"
