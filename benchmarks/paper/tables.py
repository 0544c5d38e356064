"""An experiment's results as a table: ours next to the paper's, with seeds and intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.common.paired import Interval, mean_interval, paired_difference
from sparsyedge.benchmarks.paper.experiments import Experiment, Row

__all__ = ["HEADINGS", "PERCENT", "as_document", "print_experiment"]

HEADINGS = {
    "accuracy": "accuracy",
    "late_accuracy": "late\nacc.",
    "late_single_accuracy": "late\nsingle",
    "best_accuracy": "best\nacc.",
    "final_test_accuracy": "final\ntest",
    "accuracy_sparsest": "acc. of\nsparsest",
    "loss_devices": "training\nloss",
    "test_loss": "test\nloss",
    "sparsity": "sparsity",
    "multiply_adds": "multiply-\nadds",
    "fewer_values": "fewer\nvalues",
    "fewer_bytes": "fewer\nbytes",
    "regrown_devices": "regrown\ndevices",
    "regrown_global": "regrown\nglobal",
    "mask_iou": "mask\nIoU",
    "nestedness": "nestedness",
    "mask_agreement": "mask\nagreement",
    "l2_global": "L2\nglobal",
    "cosine_global": "cosine\nglobal",
    "l2_round": "L2\nround",
    "cosine_round": "cosine\nround",
    "l2_device": "L2\ndevice",
    "cosine_device": "cosine\ndevice",
    "cosine_pairs": "cosine\npairs",
}
"""Printed names of figures, short enough for seven in 80 columns; JSON uses the keys."""
PERCENT = (
    "accuracy",
    "late_accuracy",
    "late_single_accuracy",
    "best_accuracy",
    "final_test_accuracy",
    "accuracy_sparsest",
    "sparsity",
    "multiply_adds",
)
NEAR_ONE = (
    "mask_iou",
    "nestedness",
    "mask_agreement",
    "cosine_global",
    "cosine_round",
    "cosine_device",
    "cosine_pairs",
)
"""Figures with more digits: two decimals would turn most of them into 1.00."""
COMPARED = ("accuracy", "late_accuracy", "late_single_accuracy", "final_test_accuracy")
"""The figures that compare methods seed by seed: runs with one seed share cohorts and batches."""

Result = tuple[Row, Sequence[dict[str, Any]]]
Results = Sequence[Result]


def print_experiment(console: Console, experiment: Experiment, results: Results) -> None:
    """Print the table and the notes needed to read it."""
    table = _table(experiment, results, apart=" ")
    unlimited = console.options.update_width(1000)
    if console.measure(table, options=unlimited).maximum > console.width:
        # Intervals get their own line. If that is still too wide, wrap the labels at words.
        table = _table(experiment, results, apart="\n")
    console.print(table)
    if (comparison := _beside_the_paper(experiment, results)).row_count:
        console.print(comparison)
    if experiment.note:
        console.print(experiment.note, highlight=False)
    console.print(f"{_seeds_text(results)}; accuracies are in percent", highlight=False)
    for line in _data_used(results):
        console.print(line, highlight=False)
    for (label, other), columns in groupby(
        _differences(experiment, results), key=lambda each: (each.label, each.other)
    ):
        console.print(f"{label} - {other}:", highlight=False)
        for each in columns:
            console.print(f"  {_gain(each)}", highlight=False)


def _seeds_text(results: Results) -> str:
    """How many seeds are behind the figures; rows differ where only finished runs are shown."""
    counts = {len(documents) for _, documents in results}
    if max(counts) == 1:
        return "one seed"
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
    return f"means of {seeds} seeds with 95 % intervals (Student's t)"


def _data_used(results: Results) -> list[str]:
    """The data behind the runs; a data set's name may stand for a subset, and readers must know."""
    documents = [document for _, each in results for document in each if document.get("data")]
    used = {
        (document["setting"]["dataset"], document["data"]["train"], document["data"]["test"]) for document in documents
    }
    held = {document["setting"].get("validation") or 0 for document in documents}
    aside = f", {max(held):,} of the former set aside for validation" if any(held) else ""
    return [
        f"{dataset}: {train:,} samples for training, {test:,} for testing{aside}"
        for dataset, train, test in sorted(used)
    ]


def _table(experiment: Experiment, results: Results, *, apart: str) -> Table:
    """Our figure with the paper's below; `apart` separates a mean from its interval."""
    table = Table(
        title=experiment.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("", overflow="fold")
    for column in experiment.columns:
        table.add_column(HEADINGS[column], justify="right", no_wrap=True)
    for row, documents in results:
        cells = []
        for column in experiment.columns:
            ours = _cell(column, [_figure(document, column) for document in documents], apart=apart)
            cells.append(f"{ours}\npaper {row.paper[column]}" if column in row.paper else ours)
        table.add_row(row.label, *cells)
    return table


def _beside_the_paper(experiment: Experiment, results: Results) -> Table:
    """Our accuracies next to the paper's own cells, for rows that it has."""
    table = Table(title="beside the paper", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("accuracy", overflow="fold")
    for heading in ("ours", "paper ± deviation", "ours - paper", "95 % intervals"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, documents in results:
        cell, ours = experiment.published_cell(row), _accuracy(documents)
        if cell is not None and ours is not None:
            overlaps = cell.overlaps(ours)
            verdict = "one seed" if overlaps is None else "overlap" if overlaps else "apart"
            mean = f"{ours.mean:.2f}" if overlaps is None else f"{ours.mean:.2f} ± {ours.half_width:.2f}"
            table.add_row(row.label, mean, str(cell), f"{ours.mean - cell.mean:+.2f}", verdict)
    return table


def _accuracy(documents: Sequence[dict[str, Any]]) -> Interval | None:
    """The accuracy of the last model on the test part, in percent; None if there is none."""
    found = [_figure(each, "final_test_accuracy") or _figure(each, "accuracy") for each in documents]
    known = [100 * value for value in found if value is not None]
    return mean_interval(known) if known else None


def _published_document(experiment: Experiment, row: Row, documents: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    cell, ours = experiment.published_cell(row), _accuracy(documents)
    if cell is None:
        return None
    difference = {"difference": ours.mean - cell.mean, "intervals_overlap": cell.overlaps(ours)} if ours else {}
    return {"mean": cell.mean, "std": cell.std, **difference}


def _gain(each: _Difference) -> str:
    name, gain = HEADINGS[each.column].replace("\n", " "), each.gain
    return f"{name} {gain.mean:+.2f} points ({gain.low:+.2f}..{gain.high:+.2f}), paired over {gain.count} seeds"


def as_document(name: str, experiment: Experiment, results: Results, *, scale: str) -> dict[str, Any]:
    """The same as one JSON document."""
    rows = []
    for row, documents in results:
        figures = {}
        for column in experiment.columns:
            values = [value for document in documents if (value := _figure(document, column)) is not None]
            known = mean_interval(values) if values else None
            figures[column] = {
                "mean": known and known.mean,
                "half_width_95": known.half_width if known is not None and known.count > 1 else None,
                "values": values,
            }
        rows.append(
            {
                "label": row.label,
                "figures": figures,
                "paper": row.paper,
                "paper_accuracy": _published_document(experiment, row, documents),
                "settings": [d["setting"] for d in documents],
            }
        )
    differences = [
        {
            "row": each.label,
            "minus": each.other,
            "figure": each.column,
            "points": each.gain.mean,
            "low_95": each.gain.low,
            "high_95": each.gain.high,
            "seeds": each.gain.count,
        }
        for each in _differences(experiment, results)
    ]
    return {
        "experiment": name,
        "title": experiment.title,
        "scale": scale,
        "note": experiment.note,
        "rows": rows,
        "differences": differences,
    }


@dataclass(frozen=True)
class _Difference:
    """How far a row is ahead of another, in points."""

    label: str
    other: str
    column: str
    gain: Interval


def _differences(experiment: Experiment, results: Results) -> Iterator[_Difference]:
    """Differences between rows with the same data and sparsity; none between rows that share less than two seeds."""
    for (row, documents), (other, others) in _compared(experiment, results):
        for column in COMPARED:
            pairs = [
                (100 * ours["figures"][column], 100 * theirs["figures"][column])
                for ours, theirs in _by_seed(documents, others)
                if None not in (ours["figures"].get(column), theirs["figures"].get(column))
            ]
            if len(pairs) >= 2:
                yield _Difference(row.label, other.label, column, paired_difference(*zip(*pairs, strict=True)))


def _compared(experiment: Experiment, results: Results) -> Iterator[tuple[Result, Result]]:
    """All rows with the bases of their sparsity, or SparsyFed with every other row."""
    for first, second in permutations(results, 2):
        if _place(first[0]) != _place(second[0]):
            continue
        base = second[0].label.removesuffix(f" {second[0].method.sparsity:g}") if second[0].method.sparsity else ""
        if base in experiment.bases or (not experiment.bases and first[0].method.name == "sparsyfed"):
            yield first, second


def _by_seed(
    documents: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The runs of two rows that share a seed, and so cohorts and batches."""
    theirs = {each["setting"]["seed"]: each for each in others}
    return [(ours, theirs[seed]) for ours in documents if (seed := ours["setting"]["seed"]) in theirs]


def _place(row: Row) -> tuple[Any, ...]:
    return (
        *(row.dataset, row.alpha, row.devices, row.model, row.width, row.panels),
        *(row.method.sparsity, row.method.sparsities),
    )


def _figure(document: dict[str, Any], column: str) -> float | None:
    """A figure of the whole run, or else of its last round."""
    last = document["rounds"][-1] if document["rounds"] else {}
    found: float | None = document["figures"].get(column, last.get(column))
    return found


def _cell(column: str, values: Sequence[float | None], *, apart: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    factor = 100 if column in PERCENT else 1
    interval = mean_interval([factor * value for value in known])
    places = 3 if column in NEAR_ONE else 2 if abs(interval.mean) < 1000 else 0
    text = f"{interval.mean:,.{places}f}"
    return text if interval.count < 2 else f"{text}{apart}± {interval.half_width:,.{places}f}"
