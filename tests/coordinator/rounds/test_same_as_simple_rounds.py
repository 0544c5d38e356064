"""The state machine, which keeps counts and shares tables, beside the simple one, which goes through all devices."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from fixtures import simple_rounds
from fixtures.clockwork import FIRST, PLAN, SECOND, offer_of

from sparsyedge.coordinator.rounds import state_machine
from sparsyedge.coordinator.rounds.events import (
    Accept,
    AskToWait,
    ChunkReceived,
    CloseRound,
    DeviceOffline,
    DeviceOnline,
    DeviceUnfit,
    Event,
    ExtendRound,
    GrantUpload,
    Interrupted,
    ModelReady,
    OpenRound,
    PauseRequested,
    Quarantine,
    Refuse,
    Released,
    ReplaceMember,
    ResumeRequested,
    StopRequested,
    Tick,
    UpdateInvalid,
    UpdateVerified,
    UploadComplete,
)
from sparsyedge.coordinator.rounds.stages import Closing, Failed, Finished, Open, Plan

EVENTS = 1500
RUNS = 24
SMALL, LARGE = 10, 400
TABLES = ("online", "unfit", "conduct", "left_s", "times", "missed", "closed_accepted")
STAGE_TABLES = ("cohort", "deadlines", "deadline_s", "failed", "wasted", "accepted", "extensions")


def plan_of(rng: random.Random) -> Plan:
    cohort = rng.randint(2, 8)
    needed = rng.randint(1, cohort)
    return replace(
        PLAN,
        rounds=10_000,
        cohort_size=cohort,
        min_updates=needed,
        min_devices=rng.randint(needed, cohort),
        deadline_s=rng.choice([None, None, 100.0]),
        seed=rng.randint(0, 99),
        upload_bytes=rng.choice([450, 450, 1000, 100_000]),
        policy=rng.choice(["uniform", "uniform", "round-robin"]),
        over_selection=rng.choice([0.0, 0.0, 0.5, 1.0]),
        takes_turns=rng.random() < 0.2,
    )


class Pair:
    """Both machines, fed with the same events."""

    def __init__(self, plan: Plan) -> None:
        self.state = state_machine.begin(plan, FIRST)
        self.simple = simple_rounds.begin(plan, FIRST)
        self.now_s = 0.0
        self.seen: Counter[type] = Counter()

    def feed(self, event: Event) -> None:
        self.state, commands = state_machine.advance(self.state, event, self.now_s)
        self.simple, expected = simple_rounds.advance(self.simple, event, self.now_s)
        assert commands == expected, f"{event} at {self.now_s}"
        self.compare()
        self.seen.update(type(command) for command in commands)

    def feed_verdict(self, complete: UploadComplete, verdict: UpdateVerified | UpdateInvalid) -> None:
        """Feed both as the leader does, one right after the other."""
        self.state, commands = state_machine.advance(self.state, complete, self.now_s)
        self.simple, expected = simple_rounds.advance(self.simple, complete, self.now_s)
        assert commands == expected
        self.feed(verdict)

    def compare(self) -> None:
        for name in TABLES:
            assert getattr(self.state, name) == getattr(self.simple, name), name
        stage, simple = self.state.stage, self.simple.stage
        if not isinstance(stage, Open):
            assert stage == simple
            return
        assert isinstance(simple, simple_rounds.Open)
        for name in STAGE_TABLES:
            assert getattr(stage, name) == getattr(simple, name), name
        assert set(stage.replaced) == set(simple.replaced)
        assert [(device, held.update) for device, held in stage.granted.items()] == [
            (device, held.update) for device, held in simple.granted.items()
        ]
        assert stage.granted_bytes == sum(held.bytes for held in stage.granted.values())
        assert stage.verifying == 0


def happen(pair: Pair, rng: random.Random, devices: list[str]) -> None:
    """One thing that a device, the clock or the operator does."""
    stage, device = pair.state.stage, rng.choice(devices)
    granted = list(stage.granted) if isinstance(stage, Open) else []
    if granted and rng.random() < 0.5:
        device = rng.choice(granted)
    update = stage.granted[device].update if isinstance(stage, Open) and device in stage.granted else "unknown"
    match rng.choices(
        ["time", "online", "offline", "unfit", "offer", "chunk", "good", "bad", "unasked", "operator"],
        [30, 14, 4, 4, 40, 8, 22, 2, 1, 1],
    )[0]:
        case "time":
            pair.now_s += rng.choice([0.0, 0.5, 1.0, 5.0, 14.0, 31.0, rng.choice([60.0, 100.0, 4000.0])])
            pair.feed(Tick())
        case "online":
            pair.feed(DeviceOnline(device, rng.choice(["one", "two"])))
        case "offline":
            pair.feed(DeviceOffline(device, rng.choice(["one", "two"])))
        case "unfit":
            pair.feed(DeviceUnfit(device, "one", rng.choice([0, pair.state.round, max(0, pair.state.round - 1)])))
        case "offer" if isinstance(stage, Open):
            if rng.random() < 0.7:
                device = rng.choice(stage.cohort)
            size = rng.choice([SMALL, SMALL, LARGE])
            name = f"{device}-{size}-{rng.choice('aaab')}"
            base = stage.model if rng.random() < 0.97 else "other"
            pair.feed(offer_of(device, round_number=stage.round, base=base, update=name, update_bytes=size))
        case "chunk":
            pair.feed(ChunkReceived(device))
        case "good":
            pair.feed_verdict(UploadComplete(device, update), UpdateVerified(device, update))
        case "bad":
            pair.feed_verdict(UploadComplete(device, update), UpdateInvalid(device, update, "it holds NaN"))
        case "unasked":
            pair.feed(UpdateVerified(device, "never offered"))
        case "operator":
            operator: list[Event] = [Released(device), PauseRequested(), ResumeRequested(), ResumeRequested()]
            pair.feed(rng.choice(operator))


def play(seed: int) -> Counter[type]:
    rng = random.Random(seed)
    plan = plan_of(rng)
    pair = Pair(plan)
    devices = [f"d{number:02d}" for number in range(rng.randint(plan.min_devices, 14))]
    for _ in range(EVENTS):
        happen(pair, rng, devices)
        if isinstance(pair.state.stage, Closing):
            pair.feed(ModelReady(rng.choice([FIRST, SECOND])))
        if isinstance(pair.state.stage, Finished | Failed):
            break
    end: list[Event] = [StopRequested(), Interrupted()]
    pair.feed(rng.choice(end))
    pair.feed(Tick())
    return pair.seen


def test_every_event_has_the_same_commands_and_the_same_tables() -> None:
    seen: Counter[type] = Counter()
    for seed in range(RUNS):
        seen += play(seed)
    common = (OpenRound, CloseRound, GrantUpload, Accept, Refuse, ReplaceMember, ExtendRound, Quarantine, AskToWait)
    assert {kind.__name__: seen[kind] for kind in common if seen[kind] < 5} == {}
