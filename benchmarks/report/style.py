"""How every plot looks: sizes for a column of a paper, and colours that colour-blind readers tell apart."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import matplotlib as mpl

__all__ = ["PHASE_COLOURS", "RUN_COLOURS", "RUN_MARKERS", "figure_style", "run_looks"]

# Okabe and Ito's palette, the yellow left out: it vanishes on white.
RUN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Shapes as well as colours, for a page that is printed in grey.
RUN_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PHASE_COLOURS = {
    "download": "#56B4E9",
    "train": "#0072B2",
    "prune": "#CC79A7",
    "encode": "#E69F00",
    "upload": "#D55E00",
}


def figure_style() -> Any:
    """A context in which figures are drawn."""
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
    """Colour and marker of each of `count` runs."""
    looks = cycle(zip(RUN_COLOURS, RUN_MARKERS, strict=True))
    return [{"color": colour, "marker": marker} for _, (colour, marker) in zip(range(count), looks, strict=False)]
