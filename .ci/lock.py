"""Write constraints.txt: the newest version of every package that pyproject.toml allows, with all of its extras.

pip resolves twice, because onnxruntime-training and the stock onnxruntime never share an environment. It installs
nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from sparsyedge.hardware.arm.requirements import requirements

PYPROJECT, LOCK = Path("pyproject.toml"), Path("constraints.txt")
HEADER = "# Tested versions, written by `make lock`. Use them with: pip install --constraint constraints.txt ...\n"


def main() -> int:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    extras = ",".join(project["project"]["optional-dependencies"])
    pins = resolve(f".[{extras}]", *project["build-system"]["requires"])
    for name, version in resolve(*requirements(PYPROJECT, python="3.11")).items():
        if pins.setdefault(name, version) != version:
            sys.exit(f"{name} is {pins[name]}, and {version} beside the stock onnxruntime; bound it in {PYPROJECT}")
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name != "sparsyedge"]
    LOCK.write_text(HEADER + "".join(lines), encoding="utf-8")
    print(f"{LOCK}: {len(lines)} packages; run `make test` with them before you commit it")
    return 0


def resolve(*wanted: str) -> dict[str, str]:
    """The versions that pip would install in an empty environment, without the part that names a build (+cpu)."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run([*command, *wanted], check=True, stdout=subprocess.PIPE).stdout)
    found = [package["metadata"] for package in report["install"]]
    return {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"].partition("+")[0] for one in found}


if __name__ == "__main__":
    sys.exit(main())
