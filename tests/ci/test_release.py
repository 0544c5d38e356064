"""What `make release` refuses, what it takes from CHANGELOG.md, and what it finds wrong with packages."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from release.__main__ import same_as_before, write_sums
from release.changelog import release_notes
from release.commit import build_time, export_tree, refuse_unfit, tracked_files
from release.packages import LIBRARIES, check_sdist, check_wheel_content, unpack
from release.refusal import ReleaseRefused

REPOSITORY = Path(__file__).parents[2]
CHANGELOG = """# Changelog

## Unreleased

## 1.2.0 - 2026-11-18

### Added
- A thing.

## [1.1.0] - 2026-01-01
- Older.
"""
TAG = "py3-none-manylinux_2_34_x86_64"
TRACKED = {"edge/__init__.py", "benchmarks/results/one.json", "edge/native/op.cc", "tests/test_op.py"}


def git(repository: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A commit that can be released as 1.2.0."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / ".gitignore").write_text("dist/\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def run(repository: Path, *arguments: str) -> tuple[int, str, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / ".ci")}
    result = subprocess.run(
        [sys.executable, "-m", "release", *arguments], cwd=repository, env=environment, capture_output=True, text=True
    )
    return result.returncode, result.stdout, result.stderr.splitlines()


def test_clean_commit_with_a_changelog_can_be_released(repository: Path) -> None:
    assert run(repository, "--check") == (0, "sparsyedge 1.2.0 can be released from this commit\n", [])


def test_dirty_tree_is_refused_in_one_sentence(repository: Path) -> None:
    (repository / "left-over.txt").write_text("?")
    code, _, errors = run(repository)
    assert code == 2
    assert len(errors) == 1
    assert "has 1 changes that no commit has, `?? left-over.txt` first; commit or remove them" in errors[0]


def test_version_without_a_changelog_section_is_refused_in_one_sentence(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace("## 1.2.0", "## 1.2.1"))
    git(repository, "commit", "--quiet", "--all", "--message", "another version")
    code, _, errors = run(repository)
    assert code == 2
    assert len(errors) == 1
    assert "CHANGELOG.md has no section for 1.2.0; rename `## Unreleased`" in errors[0]


def test_version_with_a_tag_is_refused_in_one_sentence(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    code, _, errors = run(repository)
    assert code == 2
    assert len(errors) == 1
    assert "the tag v1.2.0 exists, at commit" in errors[0]
    assert "set a new version in pyproject.toml" in errors[0]


def test_folder_without_a_commit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    code, _, errors = run(tmp_path)
    assert code == 2
    assert "run this in a git checkout" in errors[0]


def test_hosted_ci_releases_the_tagged_commit_and_no_other(repository: Path) -> None:
    with pytest.raises(ReleaseRefused, match=r"HEAD is not v1\.2\.0"):
        refuse_unfit(repository, "1.2.0", tagged=True)
    git(repository, "tag", "--annotate", "v1.2.0", "--message", "1.2.0")
    refuse_unfit(repository, "1.2.0", tagged=True)
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "later")
    with pytest.raises(ReleaseRefused, match=r"HEAD is not v1\.2\.0"):
        refuse_unfit(repository, "1.2.0", tagged=True)


def test_notes_are_the_version_s_own_section() -> None:
    assert release_notes(CHANGELOG, "1.2.0") == "### Added\n- A thing.\n"
    assert release_notes(CHANGELOG, "1.1.0") == "- Older.\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            CHANGELOG.replace("## Unreleased\n", "## Unreleased\n- Not in the notes.\n"),
            "still has entries under Unreleased",
        ),
        (CHANGELOG.replace("1.2.0 - 2026-11-18", "1.2.0"), "dates 1.2.0 None, must be YYYY-MM-DD"),
        (CHANGELOG.replace("2026-11-18", "2026-13-18"), "dates 1.2.0 '2026-13-18'"),
        ("## 1.2.0 - 2026-11-18\n", "says nothing about 1.2.0"),
    ],
)
def test_notes_that_would_mislead_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ReleaseRefused, match=complaint):
        release_notes(text, "1.2.0")


def test_version_of_this_repository_has_notes() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    # What is under way between two releases has its notes under Unreleased.
    assert ".dev" in version or f"## {version} - 2" in changelog
    assert "## Unreleased" in changelog


def test_files_carry_the_time_of_the_commit_unless_told_otherwise(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert time.time() - 3600 < build_time(repository) <= time.time()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
    assert build_time(repository) == 1234567890
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ReleaseRefused, match="SOURCE_DATE_EPOCH is 'yesterday', must be seconds since 1970"):
        build_time(repository)


def test_ignored_files_do_not_get_into_the_tree_that_is_built(repository: Path, tmp_path: Path) -> None:
    (repository / "dist").mkdir()
    (repository / "dist/old.whl").write_bytes(b"old")
    tree = export_tree(repository, tmp_path / "tree")
    assert {path.name for path in tree.iterdir()} == {"pyproject.toml", "CHANGELOG.md", ".gitignore"}
    assert tracked_files(repository) == {"pyproject.toml", "CHANGELOG.md", ".gitignore"}


def write_sdist(folder: Path, names: set[str], mtime: int = 0) -> Path:
    path = folder / "sparsyedge-1.2.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"sparsyedge-1.2.0/{name}")
            member.mtime = mtime
            archive.addfile(member, io.BytesIO())
    return path


def test_sdist_has_what_the_commit_has_and_nothing_else(tmp_path: Path) -> None:
    check_sdist(write_sdist(tmp_path, TRACKED | {"PKG-INFO"}), TRACKED)
    with pytest.raises(ReleaseRefused, match=r"lacks 1 files, edge/__init__\.py first"):
        check_sdist(write_sdist(tmp_path, TRACKED - {"edge/__init__.py"}), TRACKED)
    with pytest.raises(ReleaseRefused, match=r"has what no commit has: 1 files, secret\.key first"):
        check_sdist(write_sdist(tmp_path, TRACKED | {"secret.key"}), TRACKED)


def test_unpacked_sources_are_never_newer_than_the_clock(tmp_path: Path) -> None:
    sdist = write_sdist(tmp_path, {"one.cc"}, mtime=int(time.time()) + 10**7)
    assert (unpack(sdist, tmp_path / "sources") / "one.cc").stat().st_mtime <= time.time()


def write_wheel(folder: Path, *, more: set[str] = frozenset(), without: str = "", tag: str = TAG) -> Path:  # type: ignore[assignment]
    path = folder / f"sparsyedge-1.2.0-{TAG}.whl"
    names = {"sparsyedge/edge/__init__.py", *LIBRARIES, *more} - {without}
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
        archive.writestr("sparsyedge-1.2.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr("sparsyedge-1.2.0.dist-info/METADATA", "Name: sparsyedge\nVersion: 1.2.0\n")
    return path


def test_wheel_with_modules_and_libraries_is_fit(tmp_path: Path) -> None:
    check_wheel_content(write_wheel(tmp_path), TRACKED, "1.2.0")


@pytest.mark.parametrize("name", ["sparsyedge/edge/__init__.py", *sorted(LIBRARIES)])
def test_wheel_that_lacks_a_module_or_a_library_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReleaseRefused, match=f"lacks 1 files, {name} first"):
        check_wheel_content(write_wheel(tmp_path, without=name), TRACKED, "1.2.0")


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_op.py",
        "sparsyedge/benchmarks/results/one.json",
        "sparsyedge/edge/native/op.cc",
        "sparsyedge/own.key",
    ],
)
def test_wheel_with_tests_results_sources_or_unknown_files_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReleaseRefused, match=f"holds what no user needs: 1 files, {name} first"):
        check_wheel_content(write_wheel(tmp_path, more={name}), TRACKED, "1.2.0")


def test_wheel_whose_name_and_content_disagree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseRefused, match=r"says inside that it is 1\.2\.0 for py3-none-linux_x86_64"):
        check_wheel_content(write_wheel(tmp_path, tag="py3-none-linux_x86_64"), TRACKED, "1.2.0")
    with pytest.raises(ReleaseRefused, match="is not a wheel of this version"):
        check_wheel_content(write_wheel(tmp_path), TRACKED, "1.3.0")


def test_second_build_must_come_to_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.whl").write_bytes(b"same")
        write_sums(folder)
    assert not same_as_before(second, tmp_path / "nothing")
    assert same_as_before(second, first)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=first, check=True)
    (second / "SHA256SUMS").unlink()
    (second / "a.whl").write_bytes(b"other")
    write_sums(second)
    with pytest.raises(ReleaseRefused, match=r"a\.whl differ from the earlier build"):
        same_as_before(second, first)
