"""The commit that a release is made from: what is in it, when it was made, and whether it may be released."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tomllib
from pathlib import Path

from release.refusal import ReleaseRefused

__all__ = ["build_time", "export_tree", "project_version", "refuse_unfit", "tag_of", "tracked_files"]


def project_version(repository: Path) -> str:
    """The version, which pyproject.toml alone states."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def tag_of(version: str) -> str:
    """The tag of a version: v0.2.0."""
    return f"v{version}"


def refuse_unfit(repository: Path, version: str, *, tagged: bool) -> None:
    """Refuse a tree with changes that no commit has, and a version that is released already.

    With `tagged`, HEAD must carry the version's tag: hosted CI builds what was tagged.
    """
    changed = _git(repository, "status", "--porcelain").splitlines()
    if changed:
        raise ReleaseRefused(
            f"the working tree has {len(changed)} changes that no commit has, `{changed[0].strip()}` first; "
            "commit or remove them, since a release is built from a commit"
        )
    tag = tag_of(version)
    commit = _git(repository, "rev-parse", "--quiet", "--verify", f"refs/tags/{tag}^{{commit}}", may_fail=True).strip()
    if commit and not tagged:
        raise ReleaseRefused(f"the tag {tag} exists, at commit {commit[:12]}; set a new version in pyproject.toml")
    if tagged and commit != _git(repository, "rev-parse", "HEAD").strip():
        raise ReleaseRefused(
            f"HEAD is not {tag}, the tag of the version in pyproject.toml; check the tag out, or leave --tagged out"
        )


def build_time(repository: Path) -> int:
    """The time that every file of the release carries: $SOURCE_DATE_EPOCH, or when HEAD was committed."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return int(_git(repository, "log", "-1", "--format=%ct"))
    if not given.isdecimal():
        raise ReleaseRefused(
            f"SOURCE_DATE_EPOCH is {given!r}, must be seconds since 1970; unset it for HEAD's own time"
        )
    return int(given)


def tracked_files(repository: Path) -> set[str]:
    """The paths that HEAD has."""
    return set(_git(repository, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")) - {""}


def export_tree(repository: Path, folder: Path) -> Path:
    """Write HEAD's files into the folder, so that nothing which is ignored or left over gets into a package."""
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", "HEAD"], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def _git(repository: Path, *arguments: str, may_fail: bool = False) -> str:
    command = ["git", "-C", str(repository), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0 and not may_fail:
        raise ReleaseRefused(f"`{' '.join(command)}` failed: {result.stderr.strip()}; run this in a git checkout")
    return result.stdout
