"""The style of every plot: sizes for a paper's column, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl

__all__ = ["PHASE_COLOURS", "RUN_COLOURS", "RUN_LINES", "RUN_MARKERS", "figure_style", "run_looks"]

# Okabe and Ito's palette without the yellow, which vanishes on white.
RUN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Shapes as well as colours, for grey printouts.
RUN_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
RUN_LINES = ("-", "--", ":", "-.")
PHASE_COLOURS = {
    "download": "#56B4E9",
    "evaluate": "#009E73",
    "train": "#0072B2",
    "prune": "#CC79A7",
    "encode": "#E69F00",
    "upload": "#D55E00",
}


def figure_style() -> Any:
    """A context with this style for drawing figures."""
    return mpl.rc_context(
        {
            "figure.dpi": 150,
            "figure.constrained_layout.use": True,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "lines.linewidth": 1.5,
            "lines.markersize": 3.5,
            "legend.frameon": False,
            "svg.hashsalt": "sparsyedge",
        }
    )


def run_looks(count: int) -> list[dict[str, Any]]:
    """Colour, marker and line style for `count` runs; 28 runs differ even without colour."""
    looks = []
    for place in range(count):
        # Runs of one colour are a lap apart. Each lap has its own line, and its markers are a place further on.
        lap = place // len(RUN_COLOURS)
        looks.append(
            {
                "color": RUN_COLOURS[place % len(RUN_COLOURS)],
                "marker": RUN_MARKERS[(place + lap) % len(RUN_MARKERS)],
                "linestyle": RUN_LINES[lap % len(RUN_LINES)],
            }
        )
    return looks
