"""CHANGELOG.md in the format of Keep a Changelog: the notes of one version, and what is still unreleased."""

from __future__ import annotations

import re
from datetime import date

from release.refusal import ReleaseRefused

__all__ = ["release_notes"]

HEADING = re.compile(r"^## (?:\[(?P<linked>[^\]]+)\]|(?P<plain>\S+))(?: - (?P<date>\S+))?[ \t]*$", re.MULTILINE)


def release_notes(changelog: str, version: str) -> str:
    """The text below the version's heading; refused where it is missing, undated, empty or not all there is."""
    headings = list(HEADING.finditer(changelog))
    ends = [heading.start() for heading in headings[1:]] + [len(changelog)]
    sections = {
        heading["linked"] or heading["plain"]: (heading["date"], changelog[heading.end() : end].strip())
        for heading, end in zip(headings, ends, strict=True)
    }
    if version not in sections:
        raise ReleaseRefused(
            f"CHANGELOG.md has no section for {version}; rename `## Unreleased` to `## {version} - YYYY-MM-DD`"
        )
    day, notes = sections[version]
    if not _is_date(day):
        raise ReleaseRefused(f"CHANGELOG.md dates {version} {day!r}, must be YYYY-MM-DD; write `## {version} - DATE`")
    if not notes:
        raise ReleaseRefused(f"CHANGELOG.md says nothing about {version}; write what a user will notice")
    _, unreleased = sections.get("Unreleased", ("", ""))
    if unreleased:
        raise ReleaseRefused(
            f"CHANGELOG.md still has entries under Unreleased, but this commit is {version}; move them into its section"
        )
    return notes + "\n"


def _is_date(text: str | None) -> bool:
    try:
        return text is not None and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
