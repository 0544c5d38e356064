"""`sparsyedge report`, on stores written by the coordinator's own store."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from sparsyedge.benchmarks.report.command import main
from sparsyedge.benchmarks.report.runs import read_runs
from sparsyedge.coordinator.masks import Masks
from sparsyedge.coordinator.records import Evaluation
from sparsyedge.coordinator.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.edge.energy import PhaseCost
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.messages import Report

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
DEVICES = ("pi-01", "pi-02")
FIGURES = {"regrown_global": 3.0, "l2_global": 1.0, "cosine_global": 0.9, "sparsity/conv1.weight": 0.3}


def make_run(directory: Path, *, rounds: int = 3, joules: float | None = 2.0, name: str = "test") -> Path:
    store = Store.create(directory, name=name, fleet="lab", rounds=rounds, dense_bytes=1_000_000, config="")
    for number in range(1, rounds + 1):
        store.open_round(number, base=f"model-{number - 1}", base_nonzeros=9, learning_rate=0.1, cohort=DEVICES)
        for device in DEVICES:
            update = AcceptedUpdate(round=number, device=device, samples=10, sha256="", bytes=50_000, nonzeros=9)
            store.accept_update(update, make_report(number, joules))
        evaluation = Evaluation(accuracy=0.2 * number, loss=2.0 / number)
        closed = ClosedRound(
            round=number,
            model_id=f"model-{number}",
            seconds=10.0,
            global_sparsity=0.95,
            evaluation=evaluation,
            metrics=FIGURES,
        )
        store.close_round(closed)
        Masks(directory, rounds=rounds).save(number, bytes([0b1111 >> number, 0b1010]))
    store.close()
    return directory


def make_report(number: int, joules: float | None) -> Report:
    return Report(
        round=number,
        run="test",
        pid=1,
        steps=4,
        loss=1.0,
        peak_rss_mb=100.0,
        bytes_down=40_000,
        bytes_up=50_000,
        energy_source="cpu-model" if joules else "none",
        energy_kind="modelled" if joules else "none",
        phases={"download": PhaseCost(1.0, joules), "train": PhaseCost(5.0, joules)},
    )


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run, and what the command printed about its report; drawing takes a second or two, so tests share it."""
    run = make_run(tmp_path_factory.mktemp("single") / "run")
    with redirect_stdout(StringIO()) as printed:
        assert main([str(run), "--json"]) == 0
    return run, json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two runs of one name, in folders that are called for trouble; the second one has no meter."""
    folder = tmp_path_factory.mktemp("comparison")
    runs = [make_run(folder / "<script>alert(1)<" / "run"), make_run(folder / "seed-1" / "run", joules=None)]
    assert main([*map(str, runs), "--out", str(folder / "out")]) == 0
    return (folder / "out" / "report.html").read_text()


def test_report_of_one_run_is_a_page_that_needs_no_other_file(single: tuple[Path, dict[str, Any]]) -> None:
    run, _ = single
    page = (run / "report" / "report.html").read_text()
    plots = sorted(path.stem for path in (run / "report").glob("*.png"))
    assert plots == ["accuracy", "layers", "movement", "overlap", "sparsity", "timeline", "traffic"]
    assert all((run / "report" / f"{name}.png").read_bytes().startswith(PNG_SIGNATURE) for name in plots)
    assert page.count("data:image/png;base64,") == len(plots)
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "60.0%" in page


def test_json_names_what_was_written(single: tuple[Path, dict[str, Any]]) -> None:
    run, document = single
    assert Path(document["page"]) == run / "report" / "report.html"
    assert {Path(path) for path in document["plots"]} == set((run / "report").glob("*.png"))


def test_same_run_gives_the_same_plots(single: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run, _ = single
    main([str(run), "--out", str(tmp_path)])
    for plot in tmp_path.glob("*.png"):
        assert plot.read_bytes() == (run / "report" / plot.name).read_bytes()


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / seed / "sparsyfed") for seed in ("seed-0", "seed-1")]
    assert [run.label for run in read_runs(runs)] == ["seed-0/sparsyfed", "seed-1/sparsyfed"]


def test_long_names_are_cut_to_what_is_different_in_them(tmp_path: Path) -> None:
    names = ("cifar10-sparsyfed-0.95-a0.1-s5378-8f928633", "cifar10-dense-a0.1-s5378-2e48e96e")
    assert [run.label for run in read_runs([make_run(tmp_path / name) for name in names])] == [
        "sparsyfed 0.95",
        "dense",
    ]
    alike = ("cifar10-sparsyfed-0.95-a0.1-s5378-8f928633", "cifar10-sparsyfed-0.95-a0.1-s5378-2e48e96e")
    labels = [run.label for run in read_runs([make_run(tmp_path / "alike" / name) for name in alike])]
    assert labels == ["8f928633", "2e48e96e"]


def test_runs_are_compared_on_one_page(comparison: str) -> None:
    assert re.search(r"<h1>.*/run against seed-1/run</h1>", comparison)


def test_joules_stand_beside_how_they_were_come_by_or_are_absent(comparison: str, tmp_path: Path) -> None:
    assert "24 J (modelled)" in comparison
    assert read_runs([make_run(tmp_path / "run", joules=None)])[0].joules() is None


def test_names_of_runs_cannot_put_markup_into_the_page(comparison: str) -> None:
    assert "<script>" not in comparison
    assert "&lt;script&gt;" in comparison


def test_cost_of_a_run_adds_up_over_its_rounds(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "run")])
    assert run.megabytes() == pytest.approx([0.18, 0.36, 0.54])
    assert run.seconds() == pytest.approx([10, 20, 30])
    assert run.joules() == pytest.approx([8, 16, 24])


def test_figure_is_given_for_the_rounds_that_have_it(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "run")])
    assert run.figure("regrown_global", first_round=2) == ([2, 3], [3.0, 3.0])
    assert run.figure("unheard_of") == ([], [])


def test_run_without_a_finished_round_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=0)
    with pytest.raises(ConfigError, match="has no finished round yet"):
        main([str(run)])


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        main([str(tmp_path)])


def test_run_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="named twice"):
        main([str(run), str(run)])
