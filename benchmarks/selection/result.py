"""What a run took to its target: rounds, seconds and joules; and what that comes to over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsyedge.benchmarks.common.paired import Interval, mean_interval, paired_difference
from sparsyedge.coordinator.record.records import PhaseRecord, RoundRecord
from sparsyedge.coordinator.rounds.cohort import Policy

__all__ = ["FIGURES", "Outcome", "outcome_of", "summary_of", "table_of"]

FIGURES = ("rounds", "seconds", "joules")
PER_ROUND = ("round_seconds", "round_joules")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run until it reached the target; the whole run if it did not."""

    policy: Policy
    seed: int
    reached: bool
    rounds: int
    seconds: float
    """Modelled: every round takes as long as the slowest of its devices."""
    joules: float
    """Modelled: of all devices of all these rounds."""
    round_seconds: float
    """Modelled: the mean over all rounds of the run."""
    round_joules: float
    last_accuracy: float
    """In percent, at the end of the run."""
    asked: int
    """How many different devices the whole run asked."""


def outcome_of(
    policy: Policy, seed: int, rounds: Sequence[RoundRecord], phases: Sequence[PhaseRecord], *, target: float
) -> Outcome:
    """What the run took until its accuracy was `target` percent or more."""
    accuracies = [100 * (record.test_accuracy or 0.0) for record in rounds]
    found = next((number for number, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)
    until = found or len(rounds)
    slowest, joules = dict.fromkeys(range(1, len(rounds) + 1), 0.0), dict.fromkeys(range(1, len(rounds) + 1), 0.0)
    for phase in phases:
        slowest[phase.round] = max(slowest[phase.round], phase.seconds)
        joules[phase.round] += phase.joules or 0.0
    return Outcome(
        policy=policy,
        seed=seed,
        reached=found is not None,
        rounds=until,
        seconds=sum(slowest[number] for number in range(1, until + 1)),
        joules=sum(joules[number] for number in range(1, until + 1)),
        round_seconds=sum(slowest.values()) / len(rounds),
        round_joules=sum(joules.values()) / len(rounds),
        last_accuracy=accuracies[-1],
        asked=len({phase.device for phase in phases}),
    )


def summary_of(outcomes: Mapping[Policy, Sequence[Outcome]]) -> dict[str, dict[str, object]]:
    """By policy: the mean of each figure, its difference to the first policy's in pairs, and how many runs reached."""
    first = next(iter(outcomes.values()))
    document: dict[str, dict[str, object]] = {}
    for policy, runs in outcomes.items():
        entry: dict[str, object] = {
            "reached": sum(run.reached for run in runs),
            "runs": len(runs),
            "asked": mean_interval([run.asked for run in runs]).mean,
            "last_accuracy": _ends(mean_interval([run.last_accuracy for run in runs])),
        }
        for figure in (*FIGURES, *PER_ROUND):
            values, others = ([float(getattr(run, figure)) for run in group] for group in (runs, first))
            entry[figure] = _ends(mean_interval(values))
            if runs is not first:
                entry[f"{figure}_more"] = _ends(paired_difference(values, others))
        document[policy] = entry
    return document


def _ends(interval: Interval) -> list[float | None]:
    """Mean, and both ends if there are any."""
    return [interval.mean, *([interval.low, interval.high] if interval.count > 1 else [None, None])]


def table_of(outcomes: Mapping[Policy, Sequence[Outcome]]) -> str:
    """The summary as a table; figures of runs that did not reach the target are those of the whole run."""
    names = list(outcomes)
    lines = [
        f"| selection | reached | rounds | seconds, modelled | joules, modelled | seconds, against {names[0]} "
        f"| joules, against {names[0]} | seconds a round | joules a round | accuracy at the end |",
        "|---" * 10 + "|",
    ]
    for policy, runs in outcomes.items():
        cells = [policy, f"{sum(run.reached for run in runs)} of {len(runs)}"]
        cells += [_mean([float(getattr(run, figure)) for run in runs]) for figure in FIGURES]
        for figure in FIGURES[1:]:
            pairs = [[float(getattr(run, figure)) for run in group] for group in (runs, outcomes[names[0]])]
            cells.append("" if policy == names[0] else _difference(paired_difference(*pairs)))
        cells += [_mean([float(getattr(run, figure)) for run in runs]) for figure in PER_ROUND]
        cells.append(_mean([run.last_accuracy for run in runs], digits=1))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float], *, digits: int = 0) -> str:
    interval = mean_interval(values)
    around = f" ± {interval.half_width:.{digits}f}" if interval.count > 1 else ""
    return f"{interval.mean:.{digits}f}{around}"


def _difference(interval: Interval) -> str:
    ends = f" ({interval.low:+.0f} to {interval.high:+.0f})" if interval.count > 1 else ""
    return f"{interval.mean:+.0f}{ends}"
