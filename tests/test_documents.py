"""The documents as a reader meets them: links lead somewhere, and what code says is in docs/ is there.

`make docs` checks more, with Sphinx; this needs nothing and takes a second.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

REPOSITORY = Path(__file__).parent.parent
FOLDERS = ("docs", "edge", "coordinator", "export", "benchmarks", "hardware", "tests")
FILES = [
    *(path for path in REPOSITORY.iterdir() if path.is_file()),
    *(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.is_file()),
]
DOCUMENTS = [path for path in FILES if path.suffix == ".md"]
SOURCES = [
    path
    for path in FILES
    if path.suffix in (".py", ".cc", ".h", ".inc", ".toml", ".sh", ".md", ".yml", ".yaml", ".cff")
    or path.name in ("Makefile", "CMakeLists.txt")
]


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def prose(document: Path) -> str:
    """A document without its blocks of code, where brackets mean something else."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4,}\S.*$", "", text, flags=re.MULTILINE)


def links(document: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(document)))


def anchors(document: Path) -> set[str]:
    """What can stand behind a # in a link to a document: its headings, as GitHub and MyST spell them."""
    headings = re.findall(r"^#{1,6} (.+)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_of_a_document_leads_to_a_file_and_to_a_heading_that_exist(document: Path) -> None:
    broken = []
    for link in links(document):
        target = urlsplit(link)
        if target.scheme:
            continue
        path = document if not target.path else (document.parent / target.path).resolve()
        if not path.exists() or (target.fragment and path.suffix == ".md" and target.fragment not in anchors(path)):
            broken.append(link)
    assert not broken, f"{name_of(document)} links to what is not there: {', '.join(broken)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_to_other_sites_are_whole_and_encrypted(document: Path) -> None:
    outward = [urlsplit(link) for link in links(document) if urlsplit(link).scheme not in ("", "mailto")]
    wrong = [link.geturl() for link in outward if link.scheme != "https" or "." not in link.netloc]
    assert not wrong, f"{name_of(document)}: {', '.join(wrong)}"


def test_every_page_that_code_or_a_document_names_is_in_docs() -> None:
    missing = {
        f"{name_of(source)}: {page}"
        for source in SOURCES
        for page in re.findall(r"\bdocs/[\w/-]+\.(?:md|svg)\b", source.read_text(encoding="utf-8"))
        if not (REPOSITORY / page).is_file()
    }
    assert not missing, f"say where these pages are now: {', '.join(sorted(missing))}"
