"""One picture per result: step time, energy, memory and bytes, dense beside sparse; and a page around it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from typing import Any

from sparsyedge.benchmarks.device.result import DeviceResult, Model
from sparsyedge.benchmarks.device.tables import comparison, energy_line, summary

__all__ = ["STYLE", "draw", "lines", "page"]

COLOURS = {"dense": "#D55E00", "sparse": "#0072B2"}  # Okabe and Ito: colour-blind readers can tell them apart
HATCHES = {"dense": "//", "sparse": ""}
STYLE = "body{font-family:sans-serif;max-width:60em;margin:2em auto}img{max-width:100%}pre{overflow-x:auto}"


def draw(results: Sequence[DeviceResult]) -> bytes | None:
    """A PNG with a panel per figure; None without matplotlib, as on a board."""
    try:
        from matplotlib.figure import Figure

        from sparsyedge.benchmarks.report.style import figure_style
    except ModuleNotFoundError:
        return None
    panels: list[tuple[str, Callable[[Model], float | None]]] = [
        ("step time (ms, median)", lambda model: model.step_ms),
        (_energy_label(results, "J per sample"), lambda model: model.sample_j),
        ("peak memory (MB)", lambda model: model.peak_rss_mb),
        ("update (MB)", lambda model: model.update_bytes / 1e6),
    ]
    with figure_style():
        figure = Figure(figsize=(2.2 + 1.6 * max(4, 2 * len(results)), 3.0), layout="constrained")
        axes = figure.subplots(1, len(panels))
        for ax, (label, value) in zip(axes, panels, strict=True):
            _panel(ax, results, label, value)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        output = io.BytesIO()
        figure.savefig(output, format="png", metadata={"Software": None})
    return output.getvalue()


def page(results: Sequence[DeviceResult], picture: bytes | None) -> str:
    """One self-contained HTML file."""
    title = "sparsyedge bench device: " + ", ".join(result.name for result in results)
    table = summary(results[0]) if len(results) == 1 else comparison(results)
    image = ""
    if picture is not None:
        data = base64.b64encode(picture).decode()
        image = f'<img alt="dense against sparse" src="data:image/png;base64,{data}">'
    machines = "\n".join(
        f"<h2>{html.escape(result.name)}</h2><p>{html.escape(energy_line(result))}</p>"
        f"<pre>{html.escape(lines({**result.machine, **result.settings}))}</pre>"
        for result in results
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{image}<pre>{html.escape(table)}</pre>{machines}</html>\n"
    )


def _panel(ax: Any, results: Sequence[DeviceResult], label: str, value: Callable[[Model], float | None]) -> None:
    width = 0.38
    for offset, name in enumerate(("dense", "sparse")):
        heights = [value(result.models[name]) for result in results]
        places = [index + (offset - 0.5) * width for index in range(len(results))]
        bars = ax.bar(
            places,
            [height or 0.0 for height in heights],
            width,
            label=name,
            color=COLOURS[name],
            hatch=HATCHES[name],
            edgecolor="white",
        )
        ax.bar_label(bars, [_short(height) for height in heights], fontsize=7, padding=2)
    ax.set_ylabel(label)
    # Room above the tallest bar for its number.
    ax.set_ylim(0, 1.15 * max([value(result.models[name]) or 0.0 for result in results for name in COLOURS]) or 1.0)
    ax.set_xlim(-0.6, len(results) - 0.4)
    ax.set_xticks(range(len(results)), [result.name[:18] for result in results], fontsize=7)


def _short(number: float | None) -> str:
    """A number that fits over its bar."""
    return "none" if number is None else f"{number:.2g}" if number < 1 else f"{number:.3g}"


def _energy_label(results: Sequence[DeviceResult], label: str) -> str:
    kinds = sorted({result.energy_kind for result in results})
    return f"{label} ({', '.join(kinds)})"


def lines(table: dict[str, Any]) -> str:
    """Facts as lines of text."""
    return "\n".join(f"{key}: {_words(value)}" for key, value in table.items())


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return "unknown" if value is None else str(value)
