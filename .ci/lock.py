"""Write constraints.txt: the newest version of every package that pyproject.toml allows, with all of its extras.

pip resolves twice, because onnxruntime-training and the stock onnxruntime never share an environment. Where the two
come to different versions, each pin says which environments it is for. pip installs nothing.
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
# The markers of onnxruntime-training and of onnxruntime in pyproject.toml.
TRAINING = "sys_platform == 'linux' and platform_machine == 'x86_64' and python_version < '3.12'"
STOCK = "sys_platform != 'linux' or platform_machine != 'x86_64' or python_version >= '3.12'"


def main() -> int:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    training = resolve(f".[{','.join(extras)}]", *project["build-system"]["requires"])
    stock = resolve(*stock_requirements(extras))
    lines = [pin for name in sorted({*training, *stock}) for pin in pins(name, training.get(name), stock.get(name))]
    LOCK.write_text(HEADER + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{LOCK}: {len(lines)} pins; run `make test` with them before you commit it")
    return 0


def stock_requirements(extras: dict[str, list[str]]) -> set[str]:
    """What is installed beside the stock onnxruntime, our own extras expanded."""
    wanted = {line for extra in extras for line in requirements(PYPROJECT, python="3.13", extra=extra)}
    return {line for line in wanted if not line.startswith("sparsyedge")}


def pins(name: str, training: str | None, stock: str | None) -> list[str]:
    """The lines for a package: one, or one for each environment."""
    if name == "sparsyedge":
        return []
    if training is None or stock is None or training == stock:
        return [f"{name}=={training or stock}"]
    return [f"{name}=={training}; {TRAINING}", f"{name}=={stock}; {STOCK}"]


def resolve(*wanted: str) -> dict[str, str]:
    """The versions that pip would install in an empty environment, without the part that names a build (+cpu)."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run([*command, *wanted], check=True, stdout=subprocess.PIPE).stdout)
    found = [package["metadata"] for package in report["install"]]
    return {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"].partition("+")[0] for one in found}


if __name__ == "__main__":
    sys.exit(main())
