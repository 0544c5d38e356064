"""What a fuzz target is, and the table of them.

A target takes any bytes. Input that is refused with the error that callers expect is a pass, and so is input that is
understood; whatever else is raised is a finding. docs/explanation/security.md says what the targets cover.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOUND = Path(__file__).with_name("found")
"""Inputs that once broke a target, one folder per target; they are tried again by every run and every test."""

SHARES = {
    "messages": 0.15,
    "inbox": 0.15,
    "headers": 0.15,
    "frames": 0.10,
    "csrs": 0.10,
    "device_files": 0.10,
    "images": 0.02,
    "archives": 0.03,
}
"""How much of all inputs each target gets; the rest, a fifth, is for the native codec (tests/native/fuzz_codec.cc)."""


@dataclass(frozen=True)
class Target:
    """Something that reads what came from elsewhere."""

    name: str
    seeds: Callable[[], list[bytes]]
    """Honest inputs to start from."""
    check: Callable[[bytes], None]

    def corpus(self) -> list[bytes]:
        """The seeds, and what was found before."""
        return [*self.seeds(), *(path.read_bytes() for path in sorted((FOUND / self.name).glob("*")))]


def require_sentence(error: Exception) -> None:
    """Raise AssertionError unless a person can read what is wrong, in one line."""
    text = str(error)
    assert text.isprintable(), f"not one line of text: {text!r}"
    assert "None" not in text, text


def target(name: str) -> Target:
    """The target of that name; what it tests is imported here, so that a caller can have it instrumented."""
    module = importlib.import_module(f"fuzz.targets.{name}")
    return Target(name, module.seeds, module.check)
