"""`make release`: from a clean commit to checked files, their notes and their hashes. Pushes and tags nothing."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from release.changelog import release_notes
from release.commit import build_time, export_tree, project_version, refuse_unfit, tag_of, tracked_files
from release.packages import build_packages, check_sdist, check_wheel_content
from release.refusal import ReleaseRefused
from release.trial import try_in_new_environment, try_on_emulated_arm
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.hardware.arm.wheel import check_wheel

FRAME = Path("tests/golden/lossless.frame")
NOTES = "NOTES.md"
SUMS = "SHA256SUMS"


def main(argv: list[str]) -> int:
    """Make the release of the repository that this runs in; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--tagged", action="store_true", help="HEAD carries the version's tag already, as in hosted CI")
    parser.add_argument("--check", action="store_true", help="only say whether this commit can be released")
    options = parser.parse_args(argv)
    repository = Path()
    try:
        version = project_version(repository)
        refuse_unfit(repository, version, tagged=options.tagged)
        notes = release_notes((repository / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        epoch = build_time(repository)
        print(f"sparsyedge {version} can be released from this commit", flush=True)
        if not options.check:
            make_release(repository, version, notes, epoch)
    except SparsyedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {error}; what it printed is above", file=sys.stderr)
        return 1
    return 0


def make_release(repository: Path, version: str, notes: str, epoch: int) -> None:
    """Build, check and try every package, then put them with notes and hashes into dist/VERSION."""
    workshop = repository / "build/release"
    shutil.rmtree(workshop, ignore_errors=True)
    made = workshop / "made"
    made.mkdir(parents=True)
    tracked = tracked_files(repository)
    _say("building the sdist, and from it the wheels for x86-64 and aarch64")
    packages = build_packages(export_tree(repository, workshop / "tree"), made, epoch=epoch)
    check_packages(packages, tracked, version)
    try_packages(packages, workshop, version)
    (made / NOTES).write_text(notes, encoding="utf-8")
    write_sums(made)
    out = repository / "dist" / version
    same = same_as_before(made, out)
    _say("identical to the build before, byte for byte" if same else "no earlier build to compare with")
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(exist_ok=True)
    made.rename(out)
    shutil.rmtree(workshop)  # environments and a Debian tree, 2 GB
    print_next_steps(out, version)


def check_packages(packages: list[Path], tracked: set[str], version: str) -> None:
    """Refuse packages whose content, platform or metadata is not what it should be."""
    sdist, *wheels = packages
    check_sdist(sdist, tracked)
    for wheel in wheels:
        check_wheel_content(wheel, tracked, version)
        for library, needs in check_wheel(wheel).items():
            newest = ", ".join(f"{name} {'.'.join(map(str, number))}" for name, number in sorted(needs.items()))
            _say(f"{wheel.stem.rpartition('-')[2]} {library}: needs {newest}")
    subprocess.run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, packages)], check=True)


def try_packages(packages: list[Path], workshop: Path, version: str) -> None:
    """Install each package where nothing else is, and use it."""
    sdist, x86, arm = packages
    for package, name in ((x86, "wheel"), (sdist, "sdist")):
        try_in_new_environment(package, workshop / f"try-{name}", version=version, frame=FRAME)
        _say(f"{package.name}: installs, and works")
    why_not = try_on_emulated_arm(arm, workshop / "try-arm", version=version, frame=FRAME)
    _say(
        f"{arm.name}: "
        + (f"not tried under emulation, which {why_not}" if why_not else "installs, and works under qemu")
    )


def write_sums(folder: Path) -> None:
    """Write what `sha256sum --check` reads."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines), encoding="ascii")


def same_as_before(made: Path, out: Path) -> bool:
    """Whether an earlier build lies there, of the same bytes; refused where it is of others."""
    if not (out / SUMS).is_file():
        return False
    before, now = ((folder / SUMS).read_text(encoding="ascii").splitlines() for folder in (out, made))
    different = sorted({line.split()[1] for line in set(before) ^ set(now)})
    if different:
        raise ReleaseRefused(
            f"{', '.join(different)} differ from the earlier build in {out}; compare it with {made}, "
            "or remove it if it was made from another commit"
        )
    return True


def print_next_steps(out: Path, version: str) -> None:
    """The commands that publish, for a person to run."""
    tag = tag_of(version)
    print(f"""
{out} is ready. To publish it:

    git tag -a {tag} -m "sparsyedge {version}"
    git push origin {tag}          # hosted CI builds the same files again
    gh release create {tag} {out}/* --notes-file {out}/{NOTES}""")


def _say(line: str) -> None:
    print(f"- {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
