"""A suite's figures as text: one board's workloads, or several boards beside what others published and we modelled."""

from __future__ import annotations

from collections.abc import Sequence

from sparsyedge.benchmarks.device.boards_known import known_rows, read_known
from sparsyedge.benchmarks.device.suite_result import Cost, Row, SuiteResult
from sparsyedge.benchmarks.device.tables import aligned, number
from sparsyedge.edge.device.energy import meter_text
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC

__all__ = ["ABBREVIATIONS", "suite_comparison", "suite_energy_line", "suite_summary"]

HEADINGS = ("s per batch", "deviation", "samples/s", "J/sample", "MB peak", "MB up", "C", "throttled", "graph")
ABBREVIATIONS = (
    f"s per batch: median; J/sample: above idle; MB up: an update from round 2 on in {DEFAULT_CODEC}, about the same "
    "comes down; C: at the start, at most"
)


def suite_summary(result: SuiteResult) -> str:
    """One board: a row for each workload, then those that did not run and why."""
    measured = [(row.workload, *_cells(row.cost)) for row in result.rows if row.cost is not None]
    lines = aligned([("", *HEADINGS), *measured]) if measured else ["no workload was measured"]
    others = [f"{row.workload}: {row.outcome}: {row.reason}" for row in result.rows if row.cost is None]
    title = f"{result.name}, suite {result.suite}, {result.settings['threads']} thread(s)"
    return "\n".join([title, *lines, *others, ABBREVIATIONS, suite_energy_line(result), *result.notes])


def suite_energy_line(result: SuiteResult) -> str:
    """Where the joules come from; empty figures if nothing was measured."""
    costs = [row.cost for row in result.rows if row.cost is not None]
    if not costs:
        return "joules: none"
    power = costs[-1].power
    if power.method == "none":
        return "no joules: this board has no power sensor; wire an INA219, or ask for `--meter cpu-model`"
    return f"joules: {meter_text(power.source, power.method, hz=power.sampling_hz, idle_w=power.idle_w)}"


def suite_comparison(results: Sequence[SuiteResult]) -> str:
    """By workload: every board's measured row, then rows marked published and modelled."""
    known = known_rows()
    body: list[tuple[str, ...]] = []
    for workload in _workloads(results):
        for result in results:
            body += [_measured(result, row) for row in result.rows if row.workload == workload]
        for each in known:
            if each.workload == workload:
                empty = ["-"] * (len(HEADINGS) - 2)
                body.append((workload, each.board, each.kind, _seconds(each.seconds), "-", *empty))
    sources = read_known()
    return "\n".join(
        [
            *aligned([("", "board", "kind", *HEADINGS), *body]),
            ABBREVIATIONS,
            f"published: {sources.published_source}",
            f"modelled: {sources.modelled_source}",
            *(f"{result.name}: {suite_energy_line(result)}" for result in results),
            *_differences(results),
        ]
    )


def _workloads(results: Sequence[SuiteResult]) -> list[str]:
    return list(dict.fromkeys(row.workload for result in results for row in result.rows))


def _measured(result: SuiteResult, row: Row) -> tuple[str, ...]:
    if row.cost is None:
        return (row.workload, result.name, row.outcome, *["-"] * len(HEADINGS))
    return (row.workload, result.name, "measured", *_cells(row.cost))


def _cells(cost: Cost) -> tuple[str, ...]:
    soak = cost.soak
    mark = " modelled" if cost.power.method == "modelled" and cost.sample_j_above_idle is not None else ""
    joules = "-" if cost.sample_j_above_idle is None else f"{cost.sample_j_above_idle:.3g}{mark}"
    throttled = "unknown" if soak.throttled is None else "yes" if soak.throttled else "no"
    return (
        _seconds(cost.batch_s.median),
        _seconds(cost.batch_s.deviation),
        number(cost.samples_per_s),
        joules,
        number(cost.peak_rss_mb, 0),
        number(cost.round_bytes[DEFAULT_CODEC] / 1e6, 3),
        f"{number(soak.start_c)}, {number(soak.peak_c)}",
        "before" if soak.throttled and soak.throttled_before else throttled,
        cost.graph,
    )


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _differences(results: Sequence[SuiteResult]) -> list[str]:
    """Warnings about settings that make boards incomparable."""
    names = sorted({name for result in results for name in result.settings})
    found = {name: [str(result.settings.get(name)) for result in results] for name in names}
    return [f"note: {name} differs: {', '.join(values)}" for name, values in found.items() if len(set(values)) > 1]
