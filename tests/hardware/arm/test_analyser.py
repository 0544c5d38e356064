"""What llvm-mca says of a loop is read, and what it does not say is an error."""

import pytest

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm.analyser import CORES, Core, cycles, find_analyser, read_report
from sparsyedge.hardware.arm.loops import NEON, Loop

REPORT = """{"CodeRegions": [{"Name": "loop0", "Instructions": ["nop"], "SummaryView":
{"BlockRThroughput": 1, "DispatchWidth": 8, "IPC": 1.9, "Instructions": 300, "Iterations": 100, "TotalCycles": 250}}],
"TargetInfo": {"CPUName": "neoverse-n1"}}"""


def test_cycles_are_those_of_one_iteration() -> None:
    assert read_report(REPORT, 1) == [2.5]


def test_an_answer_for_fewer_loops_is_an_error() -> None:
    with pytest.raises(ConfigError, match="was given 2 loops and answered for 1"):
        read_report(REPORT, 2)


def test_another_json_is_an_error_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="not what llvm-mca 19 writes"):
        read_report('{"CodeRegions": [{}]}', 1)


@pytest.mark.skipif(find_analyser() is None, reason="no llvm-mca 19 here: `make analyser-tools` installs it")
@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_independent_multiply_adds_reach_the_limit_that_a_core_is_said_to_have(core: Core) -> None:
    body = tuple(f"fmla v{i}.4s, v30.4s, v31.4s" for i in range(24))
    (found,) = cycles([Loop(body, 24, 0, 4)], core.name, NEON.triple)
    assert 24 / found == pytest.approx(core.limit, rel=0.05)
