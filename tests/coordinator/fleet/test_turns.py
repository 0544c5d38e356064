"""The leader's turns: messages that wait together share a commit, and changes of the cohort an announcement."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from fixtures.queued_run import DEVICES, Run

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.messages import Accepted, Grant, Reply
from sparsyedge.edge.tensors import State


@pytest.fixture
def run(tmp_path: Path, artifacts: Artifacts, initial: State) -> Run:
    return Run(tmp_path, artifacts, initial)


def test_updates_that_arrive_together_share_a_commit_and_are_durable_before_any_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a turn would end after the first of them.
    monkeypatch.setattr("sparsyedge.coordinator.fleet.leader.TURN_S", 60.0)
    commits: list[bool] = []
    recorded: list[int] = []
    with closing(run.store), closing(Store.open(run.config.run_path)) as reader:

        def heard(device: str, reply: Reply) -> None:
            if isinstance(reply, Grant):
                run.upload(device)
            if isinstance(reply, Accepted):
                recorded.append(len(reader.accepted(1)))

        def idle() -> None:
            if recorded:
                run.interrupted.set()
            elif run.link.tasks:
                commits.clear()
                for device in DEVICES[:3]:
                    run.ask(device)

        run.link.heard, run.link.idle = heard, idle
        for device in DEVICES[:4]:
            run.link.say(device)
        commit = run.store.commit
        run.store.commit = lambda: commits.append(run.store._db.in_transaction) or commit()  # type: ignore
        run.lead()
        assert recorded == [3, 3, 3]
        assert commits.count(True) <= 2


def test_an_update_is_not_acknowledged_if_its_commit_fails(run: Run) -> None:
    with closing(run.store):

        def heard(device: str, reply: Reply) -> None:
            if isinstance(reply, Grant):
                run.upload(device)

        def idle() -> None:
            if run.link.tasks:

                def full() -> None:
                    raise OSError(28, "No space left on device")

                run.store.before_commit = full
                run.ask("d1")

        run.link.heard, run.link.idle = heard, idle
        for device in DEVICES[:4]:
            run.link.say(device)
        with pytest.raises(OSError, match="No space left"):
            run.lead()
        assert [type(reply) for _, reply in run.link.replies] == [Grant]


def test_members_that_are_replaced_together_share_an_announcement(run: Run) -> None:
    with closing(run.store):

        def idle() -> None:
            if len(run.link.tasks) == 1:
                for device in run.link.tasks[0].cohort[:3]:
                    run.link.say(device, unfit="too hot")
            elif run.link.tasks:
                run.interrupted.set()

        run.link.idle = idle
        for device in (*DEVICES[4:], *DEVICES[:4]):
            run.link.say(device)
        run.lead()
        opened, changed, *_ = run.link.tasks
        assert len({*opened.cohort, *changed.cohort}) == 7
        assert [task.state for task in run.link.tasks] == ["open", "open", "finished"]
        recorded = run.store.progress().open
        assert recorded is not None
        assert recorded.cohort == changed.cohort
