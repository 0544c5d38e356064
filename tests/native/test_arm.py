"""The op library for 64-bit ARM, cross-compiled and run under qemu-user: the table of layers that are small enough.

There is no ONNX Runtime here, nor a Debian for ARM: op_runner.cc stands in for the one, the cross compiler's own
libraries for the other. `make test-arm` has both.
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
from fixtures import sparse_layers as layers
from fixtures.repository import REPOSITORY
from fixtures.sparse_layers import Case, Results

TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64-static")
SYSROOT = "/usr/aarch64-linux-gnu"
CPUS = ("cortex-a53", "cortex-a72")  # of a Raspberry Pi 3 and a 4
# Emulated, a multiply-add of floats takes hundreds of times longer.
MAX_PRODUCTS = 1_000_000
SMALL = [
    case for case in layers.CASES if case.oc * case.ic * case.kernel**2 * np.prod(case.out_size) * 16 <= MAX_PRODUCTS
]
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


def program(case: Case, folder: Path) -> str:
    """What the table's own graph does, as lines for op_runner; the results go to one file each."""
    lines = []
    for name, array in layers.feeds(case).items():
        file = folder / f"{name}.in"
        file.write_bytes(np.ascontiguousarray(array).tobytes())
        kind = {"float32": "float"}.get(array.dtype.name, array.dtype.name)
        lines.append(f"tensor {name} {kind} {','.join(map(str, array.shape))} {file}")
    attributes = ",".join(f"{key}={value}" for key, value in case.attributes.items())
    lines += [
        f"op SparsePlan {attributes} index plan,order",
        "gather values theta order",
        "op SparseConv - x,values,plan y",
        "op SparseConv pad_out=0 x,values,plan y_bare",
        "op SparseConvGradInput - dy,values,plan dx",
        "op SparseConvGradInput - dy,values,plan,residual dx_added",
    ]
    for encoding in ("plain", "masked"):
        lines.append(f"op SparseConvGradWeight - saved_{encoding},dy,plan gradient")
        lines.append(f"scatter dtheta_{encoding} gradient order")
    lines += [f"write {name} {folder / name}.out" for name in Results._fields]
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


def results(case: Case, folder: Path) -> Results:
    wanted = layers.expected(case)._asdict()
    arrays = {
        name: np.frombuffer((folder / f"{name}.out").read_bytes(), np.float32).reshape(array.shape)
        for name, array in wanted.items()
    }
    return Results(**arrays)


@pytest.mark.parametrize(("cpu", "isa"), [*((cpu, "neon") for cpu in CPUS), ("cortex-a53", "scalar")])
def test_small_layers_agree_with_torch_on_arm(cpu: str, isa: str, arm_build: Path, tmp_path: Path) -> None:
    assert len(SMALL) >= 10
    done = emulate(arm_build, tmp_path, cpu, isa)
    assert done.returncode == 0, done.stderr
    for number, case in enumerate(SMALL):
        layers.assert_close(results(case, tmp_path / str(number)), layers.expected(case))


def test_neon_is_what_an_arm_processor_is_given(arm_build: Path, tmp_path: Path) -> None:
    done = emulate(arm_build, tmp_path, "cortex-a53", "avx2")
    assert done.returncode != 0
    assert "SPARSYEDGE_FORCE_ISA is avx2, this CPU has neon, scalar" in done.stderr
