"""What a figure says about its machine, and that a forced instruction set reaches the peers."""

from __future__ import annotations

import os

import pytest

from sparsyedge.benchmarks.common import machine


def test_a_forced_instruction_set_is_the_one_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSYEDGE_FORCE_ISA", "scalar")
    assert machine.instruction_set() == "scalar"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx512"),
        ({"avx2", "fma", "avx512f"}, "avx2"),
        ({"avx2"}, "scalar"),
    ],
)
def test_the_fastest_kernels_that_the_cpu_has_are_reported(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: str
) -> None:
    monkeypatch.delenv("SPARSYEDGE_FORCE_ISA", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "_cpu_flags", lambda: flags)
    assert machine.instruction_set() == expected


def test_a_forced_instruction_set_holds_for_torch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSYEDGE_FORCE_ISA", "avx2")
    for name in machine.TORCH_CAPS["avx2"]:
        monkeypatch.setenv(name, "")
    assert "limits our ops and torch" in str(machine.cap_peers())
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_without_force_nobody_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSYEDGE_FORCE_ISA", raising=False)
    assert machine.cap_peers() is None


def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 1.0, 1.0))
    assert str(machine.disturbance(2)).startswith("WARNING: load 3.0")
    assert machine.disturbance(3) is None
