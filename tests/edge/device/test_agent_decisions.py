"""What an agent decides, and how it says so: pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.fake_coordinator import (
    DEVICE,
    NO_BLOB,
    round_task,
)

from sparsyedge.edge.device.decisions import Action, decide
from sparsyedge.edge.device.outbox import task_key
from sparsyedge.edge.device.report_line import describe
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Report

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("changes", "settled", "pending", "until_finished", "expected"),
    [
        ({}, None, None, False, Action.TRAIN),
        ({}, "other", "other", False, Action.TRAIN),
        ({}, None, "key", False, Action.OFFER),
        ({}, "key", None, False, Action.WAIT),
        ({}, "key", "key", False, Action.WAIT),
        ({"cohort": ("pi-02",)}, None, None, False, Action.WAIT),
        ({"state": "closed"}, None, "key", False, Action.WAIT),
        ({"state": "finished"}, None, None, False, Action.WAIT),
        ({"state": "finished"}, None, None, True, Action.LEAVE),
        ({"state": "closed"}, None, None, True, Action.WAIT),
    ],
)
def test_what_a_task_asks_of_a_device(
    changes: dict[str, Any], settled: str | None, pending: str | None, until_finished: bool, expected: Action
) -> None:
    action = decide(
        round_task(**changes),
        device=DEVICE,
        key="key",
        settled=settled,
        pending=pending,
        until_finished=until_finished,
    )
    assert action is expected


def test_key_depends_on_what_the_update_depends_on_and_on_nothing_else() -> None:
    key = task_key(round_task(), "data")
    assert task_key(round_task(deadline_unix_s=9.0, cohort=(DEVICE,), state="closed"), "data") == key
    others = [
        task_key(round_task(), "other data"),
        *(
            task_key(round_task(**{name: value}), "data")
            for name, value in {
                "run": "other",
                "round": 2,
                "manifest": NO_BLOB,
                "model_id": "0" * 64,
                "learning_rate": 0.1,
                "epochs": 1,
                "batch_size": 2,
                "sparsity": 0.9,
                "seed": 2,
            }.items()
        ),
    ]
    assert len({key, *others}) == len(others) + 1


def test_report_is_one_line_with_every_figure() -> None:
    report = Report(
        run="demo",
        round=3,
        phases={"download": PhaseCost(0.5, None), "train": PhaseCost(12.25, 30.5)},
        energy_source="rapl",
        energy_kind="measured-rails",
        bytes_down=1000,
        bytes_up=200,
        steps=42,
        loss=0.125,
        peak_rss_mb=123.4,
        pid=1,
    )
    assert describe(report) == (
        "round 3: download 0.50 s, train 12.25 s 30.50 J (energy measured-rails (rapl)); "
        "1000 B down, 200 B up; 42 steps, loss 0.1250; peak RSS 123 MB"
    )
