"""Answers that a browser asks for one at a time: a device's history, layers over rounds, files."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path
from typing import Any

from sparsyedge.coordinator.record.page_store import PageStore
from sparsyedge.coordinator.web.scores import score

__all__ = ["FILES", "device_answer", "file_of", "layers_answer"]

FILES = ("model.onnx", "model.json")
LAST_ROUNDS = 1000
SHOWN_ROUNDS = 100


def device_answer(run_dir: Path, device: str) -> dict[str, Any] | None:
    """Return a device's rounds, evaluations, refusals, data and settings; None if the run has not heard of it."""
    with closing(PageStore.open(run_dir)) as store:
        history = store.history(device, LAST_ROUNDS)
        if not history and not store.knows(device):
            return None
        for entry in history:
            entry["given"] = score(entry.pop("given_loss"), entry.pop("given_accuracy"))
            entry["own"] = score(entry.pop("own_loss"), entry.pop("own_accuracy"))
        evaluations = store.evaluations_of(device)
        for entry in evaluations:
            entry["is_regression"] = entry["accuracy"] is None
            entry["given"] = score(entry.pop("loss"), entry.pop("accuracy"))
        return {
            "rounds": history,
            "evaluations": evaluations,
            "refusals": store.refusals_of(device),
            "data": [{"round": each.round, "note": str(each)} for each in store.data_notes_of(device) if str(each)],
            "settings": str(store.settings_of(device)),
        }


def layers_answer(run_dir: Path) -> dict[str, Any]:
    """Return the sparsity of each layer over the rounds, a hundred of them at most."""
    with closing(PageStore.open(run_dir)) as store:
        every = max(1, store.progress().closed_round // SHOWN_ROUNDS)
        history = store.layer_history(every)
    rounds = sorted({number for values in history.values() for number in values})
    return {
        "rounds": rounds,
        "layers": [
            {"name": name, "sparsity": [values.get(number) for number in rounds]} for name, values in history.items()
        ],
    }


def file_of(run_dir: Path, name: str) -> Path | None:
    """Return one of the run's files that the page offers; None for any other, and for a link to elsewhere."""
    if name not in FILES:
        return None
    path = run_dir / name
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return None
    return path if is_file else None
