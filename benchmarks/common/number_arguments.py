"""Argument checks shared by the benchmarks' command lines."""

from __future__ import annotations

import argparse

__all__ = ["positive", "positive_number", "share"]


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, at least 1 is needed")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not allowed, a number above 0 is needed")
    return value


def share(text: str) -> float:
    """A share of zeros, from 0 to below 1, for argparse."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share of zeros, from 0 to below 1")
    return value
