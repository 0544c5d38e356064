"""A report as one self-contained HTML file: it embeds its plots and loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO

from sparsyedge.benchmarks.report.plot import Plot
from sparsyedge.benchmarks.report.run_data import ReportedRun
from sparsyedge.benchmarks.report.style import figure_style
from sparsyedge.coordinator.record.device_evaluations import GLOBAL_PREFIX, PERSONAL_PREFIX, shown
from sparsyedge.coordinator.record.evaluation_tables import NOTHING
from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.tables import ratio

__all__ = ["png_of", "render_page", "svg_of"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #e3e3e3; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #888; }
figure { margin: 1.5rem 0; } figure img { width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; }
code { background: #f3f3f3; padding: .1rem .3rem; }
"""


def png_of(plot: Plot) -> bytes:
    """The figure as PNG bytes, the same for the same data."""
    buffer = BytesIO()
    plot.figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg_of(plot: Plot) -> bytes:
    """The plot as SVG for a paper or a README, the same bytes for the same run."""
    buffer = BytesIO()
    with figure_style():
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def render_page(runs: Sequence[ReportedRun], plots: Sequence[tuple[Plot, bytes]]) -> str:
    """The whole page."""
    title = " against ".join(run.label for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    figures = "\n".join(_figure(plot, png) for plot, png in plots)
    rounds = "\n".join(f"<h2>Rounds of {escape(run.label)}</h2>\n{_round_table(run)}" for run in runs)
    rounds += "".join(
        f"\n<h2>{escape(run.label)} on devices</h2>\n{table}" for run in runs if (table := _device_table(run))
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n{_run_table(runs)}\n{figures}\n{rounds}\n</body>\n</html>\n"
    )


def _figure(plot: Plot, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return (
        f'<figure>\n<img alt="{escape(plot.caption, quote=True)}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{escape(plot.caption)}</figcaption>\n</figure>"
    )


def _run_table(runs: Sequence[ReportedRun]) -> str:
    scores = _scores(runs)
    headings = ("run", "state", "rounds", *scores, "sparsity", "down", "up", "time", "energy", "model")
    return _table(headings, [_run_row(run, scores) for run in runs])


def _scores(runs: Sequence[ReportedRun]) -> tuple[str, ...]:
    """The columns that say how good a model is: an accuracy, the errors of a regression, or both."""
    records = [record for run in runs for record in run.rounds]
    errors = any(record.test_rmse is not None for record in records)
    accuracies = any(record.test_accuracy is not None for record in records)
    return ("accuracy",) * (accuracies or not errors) + ("RMSE", "R2") * errors


def _score_cells(record: RoundRecord | None, scores: tuple[str, ...]) -> tuple[str, ...]:
    """A round's cells for these columns, `-` for what it does not have."""
    if record is None:
        return ("-",) * len(scores)
    cells = {
        "accuracy": "-" if record.test_accuracy is None else f"{record.test_accuracy:.1%}",
        "RMSE": "-" if record.test_rmse is None else f"{record.test_rmse:.4g}",
        "R2": "-" if record.test_r_squared is None else f"{record.test_r_squared:.3f}",
    }
    return tuple(cells[score] for score in scores)


def _run_row(run: ReportedRun, scores: tuple[str, ...]) -> tuple[str, ...]:
    rounds = run.rounds
    evaluated = [each for each in rounds if each.test_accuracy is not None or each.test_rmse is not None]
    dense = sum(record.dense_bytes * record.updates for record in rounds)
    joules = run.joules()
    return (
        run.label,
        run.summary.run.state,
        f"{len(rounds)} of {run.summary.run.rounds}",
        *_score_cells(evaluated[-1] if evaluated else None, scores),
        f"{rounds[-1].global_sparsity:.4f}" if rounds else "-",
        _moved(dense, sum(record.bytes_down for record in rounds)),
        _moved(dense, sum(record.bytes_up for record in rounds)),
        f"{sum(record.seconds for record in rounds):.0f} s",
        f"{joules[-1]:.0f} J ({', '.join(run.energy_kinds)})" if joules else "-",
        run.summary.run.model_id[:12] or "-",
    )


def _round_table(run: ReportedRun) -> str:
    scores = _scores([run])
    headings = ("round", *scores, "loss", "sparsity", "down", "up", "updates", "refused", "seconds")
    rows = [
        (
            str(record.round),
            *_score_cells(record, scores),
            "-" if record.test_loss is None else f"{record.test_loss:.3f}",
            f"{record.global_sparsity:.4f}",
            _moved(record.dense_bytes * record.updates, record.bytes_down),
            _moved(record.dense_bytes * record.updates, record.bytes_up),
            str(record.updates),
            str(record.refused),
            f"{record.seconds:.1f}",
        )
        for record in run.rounds
    ]
    return _table(headings, rows)


def _device_table(run: ReportedRun) -> str:
    """What devices found on their own samples, round by round, and in evaluation rounds; empty without any."""
    found = [(str(number), figures) for number, figures in run.summary.on_devices.items()]
    found += [
        (f"evaluation {each.number}, after round {each.round}", each.figures)
        for each in run.summary.evaluations
        if each.figures
    ]
    if not found:
        return ""
    models = ("global", "worst tenth", "deviation", "personal", "worst tenth", "deviation")
    rows = [
        (
            name,
            f"{figures['eval_devices']:.0f}",
            f"{figures['eval_samples']:.0f}",
            f"{figures[f'{GLOBAL_PREFIX}loss']:.4g}",
            *(shown(figures, GLOBAL_PREFIX) or NOTHING),
            *(shown(figures, PERSONAL_PREFIX) or NOTHING),
        )
        for name, figures in found
    ]
    return _table(("round", "devices", "samples", "global loss", *models), rows)


def _moved(dense_bytes: int, moved_bytes: int) -> str:
    return f"{moved_bytes / 1e6:.2f} MB ({ratio(dense_bytes, moved_bytes)})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
