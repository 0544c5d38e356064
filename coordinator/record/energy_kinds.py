"""What a sum of joules may be called whose parts were not all measured alike: no more than its weakest part."""

from __future__ import annotations

__all__ = ["LEAST_TRUSTED", "least_trusted"]

# The most trusted first; `none` adds no joules.
_TRUST = ("none", "measured-board", "measured-rails", "battery", "calibrated", "modelled")
_PLACES = " ".join(f"WHEN '{kind}' THEN '{place}'" for place, kind in enumerate(_TRUST))

LEAST_TRUSTED = f"SUBSTR(MAX((CASE kind {_PLACES} ELSE '9' END) || kind), 2)"
"""The least trusted `kind` of a group of rows, in SQL."""


def least_trusted(first: str, second: str) -> str:
    """The less trusted of two kinds."""
    return max(first, second, key=_TRUST.index)
