"""The log line with the cost of a round, written at its end."""

from __future__ import annotations

from sparsyedge.edge.device.energy import joules_text, meter_text
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Report

__all__ = ["describe"]


def describe(report: Report) -> str:
    """Format a report as one line."""
    phases = ", ".join(f"{name} {_cost(cost, report.energy_kind)}" for name, cost in report.phases.items())
    energy = meter_text(report.energy_source, report.energy_kind, hz=report.energy_hz, idle_w=report.idle_w)
    return (
        f"round {report.round}: {phases} (energy {energy}); "
        f"{report.bytes_down} B down, {report.bytes_up} B up; {report.steps} steps, loss {report.loss:.4f}; "
        f"peak RSS {report.peak_rss_mb:.0f} MB"
    )


def _cost(cost: PhaseCost, kind: str) -> str:
    return f"{cost.seconds:.2f} s" + ("" if cost.joules is None else f" {joules_text(cost.joules, kind, digits=2)}")
