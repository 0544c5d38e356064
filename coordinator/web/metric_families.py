"""The families of a page of metrics: their names, units and labels, by Prometheus's conventions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from sparsyedge.coordinator.record.live import Present
from sparsyedge.coordinator.record.totals import DeviceState, DeviceTotals
from sparsyedge.coordinator.rounds.events import RefusalKind
from sparsyedge.coordinator.web.snapshot import Snapshot
from sparsyedge.edge.text import one_line

__all__ = ["of_devices", "of_fleet", "of_model", "of_present", "of_run"]

STATES = ("running", "paused", "finished", "stopped", "failed")
STAGES = ("waiting", "open", "closing", "paused", "over")
NO_UPDATES = {RefusalKind.UNREADABLE, RefusalKind.REPORT, RefusalKind.REVOKED, RefusalKind.KEPT}
"""Refusals of messages that were no updates, or not known to be."""
MAX_LABEL = 64
"""An id has at most 63 characters; anything longer came from elsewhere."""
OTHER_VERSION = "other"


def of_run(snapshot: Snapshot) -> Iterator[Metric]:
    """The run itself: its name, its state, and how far it is."""
    run = snapshot.run
    about = GaugeMetricFamily("sparsyedge_run_info", "The run that these metrics are of.", labels=("run", "fleet"))
    about.add_metric((_label(run.name), _label(run.fleet)), 1.0)
    yield about
    yield _one_of("sparsyedge_run_state", "Whether the run is in this state.", "state", STATES, run.state)
    yield from _gauge(
        "sparsyedge_coordinator_up", "Whether a coordinator leads the run at this moment.", float(snapshot.is_led)
    )
    yield from _gauge("sparsyedge_run_planned_rounds", "Rounds that the run has in all.", run.rounds)
    yield CounterMetricFamily("sparsyedge_rounds_closed", "Rounds that are closed.", value=snapshot.rounds_closed)
    yield SummaryMetricFamily(
        "sparsyedge_round_duration_seconds",
        "Seconds of the closed rounds, from their announcement to their record.",
        count_value=snapshot.rounds_closed,
        sum_value=snapshot.rounds_s,
    )
    yield from _gauge(
        "sparsyedge_round_closed_timestamp_seconds", "When the last round was closed, in Unix time.", snapshot.closed_at
    )
    since = run.created_at if snapshot.closed_at is None else snapshot.closed_at
    yield from _gauge(
        "sparsyedge_since_round_closed_seconds",
        "Seconds since the last round was closed; before the first, since the run was made.",
        # Somebody may have set the clock back.
        max(0.0, snapshot.now - since),
    )


def of_model(snapshot: Snapshot) -> Iterator[Metric]:
    """The model of the last closed round."""
    last = snapshot.last
    if last is None:
        return
    yield from _gauge("sparsyedge_model_round", "The round that the figures of the model are of.", last.round)
    yield from _gauge("sparsyedge_model_accuracy_ratio", "Accuracy on the test samples.", last.test_accuracy)
    yield from _gauge("sparsyedge_model_loss", "Mean loss on the test samples.", last.test_loss)
    yield from _gauge("sparsyedge_model_rmse", "Root mean squared error of a regression.", last.test_rmse)
    yield from _gauge(
        "sparsyedge_model_sparsity_ratio", "The share of prunable weights that are zero.", last.global_sparsity
    )


def of_fleet(snapshot: Snapshot, max_devices: int) -> Iterator[Metric]:
    """The fleet as a whole, with the devices that have no series of their own."""
    states, fleet = snapshot.states, _sum(snapshot.settled.fleet, snapshot.recent.fleet)
    following = snapshot.last.round + 1 if snapshot.last else 1
    counts = {
        "online": sum(each.online for each in states),
        "offline": sum(not each.online for each in states),
        "unfit": sum(each.unfit for each in states),
        "quarantined": sum(each.quarantined_until > following for each in states),
    }
    devices = GaugeMetricFamily("sparsyedge_devices", "Devices by state; one may be in several.", labels=("state",))
    yield _filled(devices, counts)
    yield from _gauge(
        "sparsyedge_devices_without_series",
        "Devices beyond the first ones, which count in the sums of the fleet alone.",
        len(states) - len(_named(snapshot, max_devices)),
    )
    yield from _refusals(snapshot, accepted=fleet.updates)
    yield _by(
        "sparsyedge_transferred_bytes",
        "Bytes that devices received (down) and sent (up), as they report them.",
        "direction",
        {"down": fleet.bytes_down, "up": fleet.bytes_up},
    )
    yield _by("sparsyedge_phase_seconds", "Seconds of all devices, by phase.", "phase", fleet.seconds)
    yield _by("sparsyedge_phase_joules", "Joules of all devices that know them, by phase.", "phase", fleet.joules)
    yield _by(
        "sparsyedge_joules",
        "The same joules by how they are known: measured, calibrated or modelled.",
        "kind",
        fleet.joules_by_kind,
    )


def _refusals(snapshot: Snapshot, *, accepted: int) -> Iterator[Metric]:
    """Updates by result and refusals by kind. All are there from the start, so that a first one is an increase."""
    counted = (snapshot.settled.refusals, snapshot.recent.refusals)
    kinds = {kind.value: sum(each.get(kind, 0) for each in counted) for kind in RefusalKind}
    results = {kind.value: kinds[kind] for kind in RefusalKind if kind not in NO_UPDATES}
    yield _by("sparsyedge_updates", "Updates by result.", "result", {"accepted": accepted, **results})
    yield _by("sparsyedge_refusals", "Messages from devices that were refused, by kind.", "kind", kinds)


def of_devices(snapshot: Snapshot, max_devices: int) -> Iterator[Metric]:
    """Each of the devices that were first heard of."""
    named = _named(snapshot, max_devices)
    online, last_seen, version = (
        GaugeMetricFamily(f"sparsyedge_device_{name}", text, labels=labels)
        for name, text, labels in (
            ("online", "Whether the device is online.", ("device",)),
            ("last_seen_timestamp_seconds", "When something was last heard of it, in Unix time.", ("device",)),
            ("info", "The version of sparsyedge that the device has.", ("device", "version")),
        )
    )
    for label, state in named.items():
        online.add_metric((label,), float(state.online))
        heard = [state.seen_at, *(each.updated_at for each in _both(snapshot, state.device))]
        if activity := snapshot.activities.get(state.device):
            heard.append(activity.at)
        last_seen.add_metric((label,), max(heard))
        version.add_metric((label, _version(state.software)), 1.0)
    yield from (online, last_seen, version)
    devices = {label: state.device for label, state in named.items()}
    yield from _readings(snapshot, devices)
    yield from _costs({label: _sum(*_both(snapshot, device)) for label, device in devices.items()})


def _named(snapshot: Snapshot, max_devices: int) -> dict[str, DeviceState]:
    """The devices that get series, by label; of two whose labels are the same, the first."""
    named: dict[str, DeviceState] = {}
    for state in snapshot.states[:max_devices]:
        named.setdefault(_label(state.device), state)
    return named


def _readings(snapshot: Snapshot, devices: Mapping[str, str]) -> Iterator[Metric]:
    """What the devices said of themselves lately."""
    temperature = GaugeMetricFamily(
        "sparsyedge_device_temperature_celsius", "The temperature that the device said last.", labels=("device",)
    )
    battery = GaugeMetricFamily("sparsyedge_device_battery_ratio", "How full its battery is.", labels=("device",))
    for label, device in devices.items():
        said = snapshot.activities.get(device)
        if said is not None and said.temperature_c is not None:
            temperature.add_metric((label,), said.temperature_c)
        if said is not None and said.battery_percent is not None:
            battery.add_metric((label,), said.battery_percent / 100)
    yield from (temperature, battery)


def _costs(devices: Mapping[str, DeviceTotals]) -> Iterator[Metric]:
    """What each device did, and what that cost it."""
    updates = CounterMetricFamily("sparsyedge_device_updates", "Its accepted updates.", labels=("device",))
    yield _filled(updates, {label: each.updates for label, each in devices.items()})
    refusals = CounterMetricFamily("sparsyedge_device_refusals", "Its refused messages.", labels=("device",))
    yield _filled(refusals, {label: each.refusals for label, each in devices.items()})
    transferred = CounterMetricFamily(
        "sparsyedge_device_transferred_bytes", "Bytes that it received and sent.", labels=("device", "direction")
    )
    seconds = CounterMetricFamily(
        "sparsyedge_device_phase_seconds", "Seconds of its phases.", labels=("device", "phase")
    )
    joules = CounterMetricFamily("sparsyedge_device_phase_joules", "Joules of its phases.", labels=("device", "phase"))
    for label, each in devices.items():
        transferred.add_metric((label, "down"), each.bytes_down)
        transferred.add_metric((label, "up"), each.bytes_up)
        for phase, value in each.seconds.items():
            seconds.add_metric((label, phase), value)
        for phase, value in each.joules.items():
            joules.add_metric((label, phase), value)
    yield from (transferred, seconds, joules)


def of_present(present: Present) -> Iterator[Metric]:
    """What the coordinator does at this moment, what it waits for, and what it costs."""
    yield _one_of("sparsyedge_run_stage", "What the coordinator is doing.", "stage", STAGES, present.stage)
    yield from _gauge("sparsyedge_round", "The round that is open, or waits to be.", present.round)
    yield from _gauge("sparsyedge_round_cohort_devices", "Devices that the open round asked.", present.cohort)
    yield from _gauge("sparsyedge_round_accepted_updates", "Updates of the open round.", present.accepted)
    yield from _gauge(
        "sparsyedge_round_awaited_updates",
        "Updates that the open round still waits for.",
        max(0, present.cohort - present.accepted),
    )
    yield from _gauge(
        "sparsyedge_round_wait_until_timestamp_seconds",
        "When the coordinator stops waiting, in Unix time; absent if it waits without a limit.",
        present.until,
    )
    yield from _gauge("sparsyedge_uploads", "Updates that are being uploaded.", present.uploads)
    yield from _gauge("sparsyedge_offers_waiting", "Devices that wait for a place to upload.", present.offers_waiting)
    yield from _gauge(
        "sparsyedge_inbox_messages", "Messages that arrived and were not handled yet.", present.inbox_messages
    )
    yield CounterMetricFamily(
        "sparsyedge_coordinator_cpu_seconds",
        "Processor seconds of the coordinator and its workers since they started.",
        value=present.cpu_s,
    )
    yield from _gauge(
        "sparsyedge_coordinator_resident_memory_bytes",
        "Resident memory of the coordinator and its workers.",
        present.rss_bytes,
    )


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    """A gauge without labels; nothing if there is no value."""
    if value is not None:
        yield GaugeMetricFamily(name, text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=(label,)), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for label, value in values.items():
        family.add_metric((label,), value)
    return family


def _one_of(name: str, text: str, label: str, choices: Iterable[str], chosen: str) -> Metric:
    """A series for every choice, which is 1 for one of them: a change of state makes no new series."""
    family = GaugeMetricFamily(name, text, labels=(label,))
    return _filled(family, {choice: float(choice == chosen) for choice in choices})


def _both(snapshot: Snapshot, device: str) -> Iterator[DeviceTotals]:
    for totals in (snapshot.settled, snapshot.recent):
        if device in totals.devices:
            yield totals.devices[device]


def _sum(*parts: DeviceTotals) -> DeviceTotals:
    total = DeviceTotals()
    for part in parts:
        total.add(part)
    return total


def _label(text: str) -> str:
    return one_line(text, MAX_LABEL)


def _version(software: str) -> str:
    """The version in the name of a device's software: devices could call it anything, and each would be a series."""
    found = re.search(r"\b\d{1,3}(?:\.\d{1,3}){1,2}\b", software)
    return found.group() if found else OTHER_VERSION
