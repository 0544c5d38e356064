"""The SIMD headers: the same names in the same order, and each function does what scalar.h does."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fixtures.op_cases.elsewhere import available_isas
from fixtures.repository import REPOSITORY

KERNELS = REPOSITORY / "edge/native/kernels"
ISAS = ("scalar", "avx2", "avx512", "neon")
# As in CMakeLists.txt. GCC warns about its own AVX-512 intrinsics, hence no -Wall.
FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}
CROSS, QEMU, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"


def names_in(isa: str) -> list[str]:
    """Constants, types and functions that a header offers, in order; double precision may be one type or an alias."""
    text = (KERNELS / f"simd/{isa}.h").read_text(encoding="utf-8")
    text = re.sub(r"namespace internal \{.*?\}  // namespace internal", "", text, flags=re.DOTALL)
    text = re.sub(r"^(struct|using) DoubleVec.*", "struct DoubleVec", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(
        r"constexpr int (\w+)|struct (\w+)|using (\w+) =|SPARSYEDGE_INLINE [\w:]+ (operator.|\w+)\(", text
    )
    return ["".join(groups) for groups in found]


@pytest.mark.parametrize("isa", ISAS)
def test_every_header_offers_the_same_names_in_the_same_order(isa: str) -> None:
    names = names_in("scalar")
    assert {"kTilePositions", "Reg", "SumEach", "StoreTotals", "Vec", "Pack", "DoubleVec"} <= set(names)
    assert names_in(isa) == names


def test_no_other_kernel_source_asks_for_the_instruction_set() -> None:
    asking = [
        path.name
        for path in sorted(KERNELS.rglob("*"))
        if path.is_file() and re.search(r"^#\s*(if|elif|ifdef)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert asking == ["dispatch.cc"], "only the choice at run time depends on the platform"


def tools_for(isa: str) -> tuple[str, list[str]]:
    """The compiler for a set and what runs its programs here; skips where this machine can do neither."""
    if isa in available_isas():
        compiler, runner = "g++", []
    elif isa == "neon":
        compiler, runner = CROSS, [QEMU, "-L", SYSROOT]
    else:
        pytest.skip(f"this CPU has no {isa}")
    missing = [tool for tool in (compiler, *runner[:1]) if shutil.which(tool) is None]
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no {missing[0]} here; run `make setup`")
    return compiler, runner


@pytest.mark.heavy
@pytest.mark.parametrize("isa", ISAS)
def test_every_function_does_what_the_scalar_one_does(isa: str, tmp_path: Path) -> None:
    compiler, runner = tools_for(isa)
    program, source = tmp_path / "simd_check", Path(__file__).with_name("simd_check.cc")
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-DSPARSYEDGE_ISA={isa}", f"-I{KERNELS}", *FLAGS.get(isa, [])]
    subprocess.run([compiler, *flags, "-o", str(program), str(source)], check=True, timeout=300)
    done = subprocess.run([*runner, str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"differs from scalar.h: {done.stdout.split()}"
