"""The op library for 64-bit ARM, cross-compiled and run under qemu-user: the table's cases that are small enough.

op_runner.cc stands in for ONNX Runtime, the cross compiler's libraries for a Debian; `make test-arm` has the real ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fixtures.op_cases.case import Array, Node, OpCase
from fixtures.op_cases.table import CASES
from fixtures.repository import REPOSITORY

TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64-static")
SYSROOT = "/usr/aarch64-linux-gnu"
CPUS = ("cortex-a53", "cortex-a72", "cortex-a76")  # of a Raspberry Pi 3, a 4 and a 5
# Emulated, a multiply-add of floats takes hundreds of times longer.
MAX_WORK = 1_000_000
SMALL = [case for case in CASES if case.work <= MAX_WORK]
BUILD_S = 900.0

pytestmark = [pytest.mark.timeout(1200), pytest.mark.heavy]


@pytest.fixture(scope="module")
def arm_build() -> Path:
    """A folder with the op library and the runner for ARM, built where they are not up to date."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        message = f"no {missing[0]} here; run `make setup`, or: apt-get install g++-aarch64-linux-gnu qemu-user-static"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = REPOSITORY / "build/aarch64"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:  # two test processes, one build
        fcntl.flock(lock, fcntl.LOCK_EX)
        tools = Path(sys.executable).parent
        toolchain = REPOSITORY / "hardware/arm/aarch64.cmake"
        settings = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_BUILD_TYPE=Release"]
        run([str(tools / "cmake"), "-S", str(REPOSITORY), "-B", str(folder), "-G", "Ninja", *settings], tools)
        run([str(tools / "cmake"), "--build", str(folder)], tools)
        source = Path(__file__).with_name("op_runner.cc")
        run([TOOLS[0], "-std=c++17", "-O1", "-Wall", "-Wextra", "-o", str(folder / "op_runner"), str(source), "-ldl"])
    return folder


def run(command: list[str], path: Path | None = None) -> None:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else dict(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def line_of(node: Node) -> str:
    inputs, outputs = node.inputs.split(), node.outputs.split()
    if node.op == "Gather":
        values, order = inputs
        return f"gather {outputs[0]} {values} {order}"
    if node.op == "ScatterElements":
        _, order, values = inputs
        return f"scatter {outputs[0]} {values} {order}"
    attributes = ",".join(f"{key}={value}" for key, value in node.attributes.items()) or "-"
    return f"op {node.op} {attributes} {','.join(inputs)} {','.join(outputs)}"


def program(case: OpCase, folder: Path) -> str:
    """The case as lines for op_runner; each result goes to a file."""
    feeds, expected = case.tensors()
    lines = []
    for name, array in feeds.items():
        file = folder / f"{name}.in"
        file.write_bytes(np.ascontiguousarray(array).tobytes())
        kind = {"float32": "float"}.get(array.dtype.name, array.dtype.name)
        lines.append(f"tensor {name} {kind} {','.join(map(str, array.shape))} {file}")
    lines += [line_of(node) for node in case.nodes]
    lines += [f"write {name} {folder / name}.out" for name in expected]
    return "\n".join(lines) + "\n"


def emulate(build: Path, folder: Path, cpu: str, isa: str = "") -> subprocess.CompletedProcess[str]:
    """Runs all small cases in one emulated process; case number i has its files in folder/i."""
    lines = []
    for number, case in enumerate(SMALL):
        (folder / str(number)).mkdir()
        lines.append(program(case, folder / str(number)))
    (folder / "program").write_text("".join(lines))
    command = [TOOLS[1], "-L", SYSROOT, str(build / "op_runner"), str(build / "libsparsyedge_ops.so")]
    return subprocess.run(
        [*command, str(folder / "program")],
        env={**os.environ, "QEMU_CPU": cpu, "SPARSYEDGE_FORCE_ISA": isa},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )


def results(case: OpCase, folder: Path) -> dict[str, Array]:
    def read(name: str, wanted: Array) -> Array:
        dtype = np.uint8 if wanted.dtype == np.uint8 else np.float32
        return np.frombuffer((folder / f"{name}.out").read_bytes(), dtype).reshape(wanted.shape)

    return {name: read(name, wanted) for name, wanted in case.tensors().expected.items()}


@pytest.mark.parametrize(("cpu", "isa"), [*((cpu, "neon") for cpu in CPUS), ("cortex-a53", "scalar")])
def test_small_cases_agree_with_the_reference_on_arm(cpu: str, isa: str, arm_build: Path, tmp_path: Path) -> None:
    assert len(SMALL) >= 100
    done = emulate(arm_build, tmp_path, cpu, isa)
    assert done.returncode == 0, done.stderr
    for number, case in enumerate(SMALL):
        case.assert_agrees(results(case, tmp_path / str(number)))


def test_neon_is_what_an_arm_processor_is_given(arm_build: Path, tmp_path: Path) -> None:
    done = emulate(arm_build, tmp_path, "cortex-a53", "avx2")
    assert done.returncode != 0
    assert "SPARSYEDGE_FORCE_ISA is avx2, this CPU has neon, scalar" in done.stderr
