"""The figures of one or several boards as text; joules always come with their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsyedge.benchmarks.device.result import DeviceResult, Model
from sparsyedge.edge.device.energy import joules_mark, meter_text

__all__ = ["aligned", "comparison", "energy_line", "number", "summary"]

Row = tuple[str, Callable[[Model], str]]


def number(value: float | None, digits: int = 1) -> str:
    """A figure of a table, `-` if it is unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def _joules(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _rows(kind: str) -> list[Row]:
    mark = joules_mark(kind)
    return [
        ("sparsity, %", lambda model: number(100 * model.sparsity)),
        ("graph", lambda model: model.graph),
        ("steps", lambda model: str(model.steps)),
        ("step, ms (median)", lambda model: number(model.step_ms)),
        ("step, ms (10 % .. 90 %)", lambda model: f"{model.step_ms_p10:.1f} .. {model.step_ms_p90:.1f}"),
        ("samples per second", lambda model: number(model.samples_per_s)),
        (f"J per sample{mark}", lambda model: _joules(model.sample_j)),
        (f"J per sample above idle{mark}", lambda model: _joules(model.sample_j_above_idle)),
        ("round, s", lambda model: number(model.round_s)),
        (f"J per round{mark}", lambda model: _joules(model.round_j)),
        (f"J per round above idle{mark}", lambda model: _joules(model.round_j_above_idle)),
        ("update, MB", lambda model: number(model.update_bytes / 1e6, 3)),
        ("peak RSS, MB", lambda model: number(model.peak_rss_mb, 0)),
        ("temperature, C (start, peak)", lambda model: f"{number(model.start_c)}, {number(model.peak_c)}"),
        ("throttled", lambda model: _yes(model.throttled)),
    ]


def energy_line(result: DeviceResult) -> str:
    """A line that says where the joules come from."""
    if result.energy_kind == "none":
        return "no joules: this board has no power sensor; wire an INA219, or ask for `--meter cpu-model`"
    text = meter_text(result.energy_source, result.energy_kind, hz=result.energy_hz, idle_w=result.idle_w)
    overhead = f", sampling took {100 * result.meter_overhead:.1f} % of a core" if result.energy_hz else ""
    return f"joules: {text}{overhead}"


def summary(result: DeviceResult) -> str:
    """One board: dense, sparse and their ratio."""
    dense, sparse = result.models["dense"], result.models["sparse"]
    body = [
        (label, show(dense), show(sparse), _ratio(label, dense, sparse)) for label, show in _rows(result.energy_kind)
    ]
    lines = aligned([("", "dense", "sparse", "dense / sparse"), *body])
    return "\n".join(
        [f"{result.name}, {result.settings['threads']} thread(s)", *lines, energy_line(result), *result.notes]
    )


def comparison(results: Sequence[DeviceResult]) -> str:
    """Boards in columns, dense and sparse of each."""
    header = [f"{result.name} {name}" for result in results for name in result.models]
    kinds = [result.energy_kind for result in results for _ in result.models]
    body = [("energy", *kinds)]
    for index, (label, _) in enumerate(_rows("")):
        cells = []
        for result in results:
            _, show = _rows("")[index]
            for model in result.models.values():
                text = show(model)
                marked = label.startswith("J ") and text != "-"
                cells.append(f"{text}{joules_mark(result.energy_kind)}" if marked else text)
        body.append((label, *cells))
    return "\n".join([*aligned([("", *header), *body]), *_differences(results)])


def _ratio(label: str, dense: Model, sparse: Model) -> str:
    pairs: dict[str, tuple[float | None, float | None]] = {
        "step, ms (median)": (dense.step_ms, sparse.step_ms),
        "J per sample": (dense.sample_j, sparse.sample_j),
        "J per sample above idle": (dense.sample_j_above_idle, sparse.sample_j_above_idle),
        "round, s": (dense.round_s, sparse.round_s),
        "J per round": (dense.round_j, sparse.round_j),
        "J per round above idle": (dense.round_j_above_idle, sparse.round_j_above_idle),
        "update, MB": (dense.update_bytes, sparse.update_bytes),
        "peak RSS, MB": (dense.peak_rss_mb, sparse.peak_rss_mb),
    }
    name = label.removesuffix(joules_mark("modelled")).removesuffix(joules_mark("calibrated"))
    first, second = pairs.get(name, (None, None))
    return f"{first / second:.1f}x" if first and second else ""


def _differences(results: Sequence[DeviceResult]) -> list[str]:
    """Warnings about settings that make boards incomparable."""
    names = {name for result in results for name in result.settings}
    lines = []
    for name in sorted(names):
        values = [result.settings.get(name) for result in results]
        if any(value != values[0] for value in values):
            lines.append(f"note: {name} differs: {', '.join(str(value) for value in values)}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of columns, the first one to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
