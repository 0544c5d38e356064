"""What a finished run shows."""

from __future__ import annotations

import io

from rich.console import Console

from sparsyedge.benchmarks.common.run_summary import print_rounds, print_summary
from sparsyedge.coordinator.record.records import DeviceRecord, RoundRecord, RunRecord, RunSummary
from sparsyedge.edge.phase_costs import PhaseCost


def round_of(number: int, **changes: int) -> RoundRecord:
    values: dict[str, int] = {
        "bytes_down": 123_456_789,
        "bytes_up": 12_345_678,
        "nonzeros_down": 100 * 11_173_962,
        "nonzeros_up": 100 * 563_303,
        "dense_bytes": 44_734_248,
        "updates": 100,
        "refused": 12,
    }
    return RoundRecord(
        round=number,
        test_accuracy=0.9876,
        test_loss=0.1,
        global_sparsity=0.9512,
        seconds=12345.6,
        learning_rate=0.5,
        model_id="a" * 64,
        **{**values, **changes},
    )


def device_of(name: str, *, joules: float | None) -> DeviceRecord:
    costs = {phase: PhaseCost(1234.5, joules) for phase in ("download", "train", "prune", "encode", "upload")}
    return DeviceRecord(
        id=name,
        pid=1,
        phases=costs,
        energy_source="none" if joules is None else "cpu-model",
        energy_kind="none" if joules is None else "modelled",
        joules_kind="none" if joules is None else "modelled",
        energy_hz=0.0,
        idle_w=None,
        rounds=3,
        steps=12345,
        last_loss=0.5,
        peak_rss_mb=1234.0,
        bytes_down=1,
        bytes_up=1,
        online=True,
    )


def summary_of(*rounds: RoundRecord, devices: tuple[DeviceRecord, ...] = ()) -> RunSummary:
    run = RunRecord(
        name="r",
        fleet="f",
        state="finished",
        reason="",
        rounds=len(rounds),
        created_at=0.0,
        seen_at=0.0,
        pid=1,
        dense_bytes=1,
        model_id="a" * 64,
        model_sha256="b" * 64,
    )
    return RunSummary(run=run, run_dir="/r", rounds=rounds, devices=devices, refusals=())


def printed(summary: RunSummary) -> list[str]:
    out = io.StringIO()
    print_rounds(Console(file=out, width=80), summary)
    return out.getvalue().splitlines()


def test_rounds_fit_eighty_columns_with_nothing_cut_off() -> None:
    lines = [line for line in printed(summary_of(round_of(1), round_of(100))) if "/r" not in line]
    table = [line for line in lines if "sha256" not in line]
    assert max(map(len, table)) <= 80
    assert not any("…" in line for line in table)
    assert any("12345.6" in line for line in table)


def test_devices_fit_eighty_columns_and_joules_have_a_line_where_they_are_known() -> None:
    out = io.StringIO()
    devices = (device_of("device-001", joules=None), device_of("device-002", joules=6789.0))
    print_summary(Console(file=out, width=80), summary_of(round_of(1), devices=devices))
    lines = out.getvalue().splitlines()
    start = next(index for index, line in enumerate(lines) if "device-001" in line)
    assert [line.split()[:3] for line in lines[start : start + 3]] == [
        ["device-001", "s", "1234.5"],
        ["device-002", "s", "1234.5"],
        ["J", "modelled", "6789.0"],
    ]
    assert all(len(line) <= 80 and "…" not in line for line in lines[start - 4 : start + 3])


def test_rounds_show_bytes_and_values_as_times_less_than_dense() -> None:
    row = next(line for line in printed(summary_of(round_of(7))) if line.split()[:1] == ["7"])
    # Dense is 100 x 44,734,248 bytes of 4 per value.
    assert row.split()[3:9] == ["123.46", "36.2x", "1.0x", "12.35", "362.3x", "19.9x"]
