"""A run with `selection = "balanced"`: what it asks of devices and believes; and which runs cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fixtures.clockwork import PLAN, Run
from msgspec import UNSET

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.plan import check_selection, check_warmup
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.rounds.cohort import Policy, sample_cohort
from sparsyedge.coordinator.rounds.events import DeviceOffline, DeviceOnline, DeviceUnfit, OpenRound, ReplaceMember
from sparsyedge.coordinator.rounds.stages import replace
from sparsyedge.edge.compatibility import CLASS_SHARES, FIRST, OURS
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.messages import DeviceStatus
from sparsyedge.edge.protocol.topics import Topics


class Unheard:
    """A channel whose messages reach nobody."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        pass


TOLD = {f"d{number}": bytes([0] * (number % 4) + [100] + [0] * (3 - number % 4)) for number in range(8)}


def announcements(artifacts: Artifacts, selection: Policy) -> Announcements:
    config = RunConfig(
        name="demo",
        artifacts=str(artifacts.directory),
        run_dir=str(Path(artifacts.directory).parent / "run"),
        dataset="digits",
        rounds=3,
        cohort_size=2,
        selection=selection,
    )
    return Announcements(config, artifacts, Publisher(cast("Channel", Unheard()), Topics("lab")))


def status(**fields: Any) -> DeviceStatus:
    return DeviceStatus(state="online", boot_id="b", speaks=OURS, **fields)


def test_only_shares_of_the_models_classes_are_believed(artifacts: Artifacts) -> None:
    asking = announcements(artifacts, "balanced")
    assert asking.judge("d1", status(classes=(0, 100, 0, 0))).classes == (0, 100, 0, 0)
    assert asking.judge("d1", status(classes=(0, 100, 0))).classes is UNSET
    assert asking.judge("d1", status(classes=(0,) * 1000)).classes is UNSET


def test_what_a_run_did_not_ask_for_is_forgotten(artifacts: Artifacts) -> None:
    assert announcements(artifacts, "uniform").judge("d1", status(classes=(0, 100, 0, 0))).classes is UNSET


def test_a_device_that_cannot_tell_its_classes_is_told_to_upgrade(artifacts: Artifacts) -> None:
    older = msgspec.structs.replace(status(software="sparsyedge 0.3.0"), speaks=FIRST)
    unfit = announcements(artifacts, "balanced").judge("d1", older).unfit
    assert unfit.startswith(f"upgrade sparsyedge on d1: d1 runs sparsyedge 0.3.0 without `{CLASS_SHARES}`")
    assert not announcements(artifacts, "uniform").judge("d1", older).unfit


def test_a_round_opens_with_devices_whose_classes_differ() -> None:
    plan = replace(PLAN, policy="balanced", cohort_size=4, min_updates=4, min_devices=8)
    run = Run(plan)
    for device, classes in TOLD.items():
        run.feed(DeviceOnline(device, "boot", classes))
    (opened,) = run.all(OpenRound)
    assert {TOLD[device] for device in opened.cohort} == set(TOLD.values())
    assert opened.cohort == sample_cohort(TOLD, 4, seed=plan.seed, round_number=1, policy="balanced", classes=TOLD)


def test_what_a_device_said_outlives_a_lost_connection() -> None:
    run = Run(replace(PLAN, policy="balanced"))
    run.feed(DeviceOnline("d1", "boot", TOLD["d1"]), DeviceOffline("d1", "boot"), DeviceOnline("d1", "again"))
    assert run.state.classes["d1"] == TOLD["d1"]


def test_a_member_that_will_not_train_is_replaced_by_lot() -> None:
    run = Run(replace(PLAN, policy="balanced", cohort_size=4, min_updates=4, min_devices=8))
    for device, classes in TOLD.items():
        run.feed(DeviceOnline(device, "boot", classes))
    (opened,) = run.all(OpenRound)
    run.feed(DeviceUnfit(opened.cohort[0], "boot"))
    (replaced,) = run.all(ReplaceMember)
    assert replaced.device == opened.cohort[0]
    assert replaced.substitute == sample_cohort(set(TOLD) - set(opened.cohort), 1, seed=PLAN.seed, round_number=1)[0]


def test_models_without_classes_with_too_many_or_with_groups_are_refused(manifest: Manifest) -> None:
    check_selection("balanced", manifest)
    groups = msgspec.structs.replace(manifest.method, sparsities=(0.9, 0.8), shares=(1, 1))
    for changes, why in (
        ({"task": "regression"}, "it evens out classes, and the model is a regression"),
        ({"classes": 1001}, "devices tell at most 1000 classes, and the model has 1001"),
        ({"method": groups}, "the groups of `method.shares` have places of their own"),
    ):
        other = msgspec.structs.replace(manifest, **cast("dict[str, Any]", changes))
        check_selection("uniform", other)
        with pytest.raises(ConfigError, match=f'key `selection` has value "balanced": {why}'):
            check_selection("balanced", other)


def test_a_warm_up_that_outlasts_the_run_is_refused() -> None:
    method = make_method("sparsyfed", activation_warmup=10)
    check_warmup(11, method)
    check_warmup(1, make_method("sparsyfed"))
    with pytest.raises(
        ConfigError, match=r"`method.activation_warmup` has value 10: .*`rounds` = 10.* allowed are 1 to 9"
    ):
        check_warmup(10, method)
