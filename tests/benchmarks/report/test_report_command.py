"""`sparsyedge report`, on stores written by the coordinator's own store."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from sparsyedge.benchmarks.report.command import main
from sparsyedge.benchmarks.report.figures import FIGURES
from sparsyedge.benchmarks.report.page import render_page
from sparsyedge.benchmarks.report.plot import Plot
from sparsyedge.benchmarks.report.run_data import ReportedRun, read_runs
from sparsyedge.benchmarks.report.style import figure_style, run_looks
from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.record.metrics import of_evaluation
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Report

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
DEVICES = ("pi-01", "pi-02")
METRICS = {"regrown_global": 3.0, "l2_global": 1.0, "cosine_global": 0.9, "sparsity/conv1.weight": 0.3}


def make_run(
    directory: Path,
    *,
    rounds: int = 3,
    joules: float | None = 2.0,
    name: str = "test",
    regrown: int | None = None,
    regression: bool = False,
) -> Path:
    store = Store.create(directory, name=name, fleet="lab", rounds=rounds, dense_bytes=1_000_000, config="")
    for number in range(1, rounds + 1):
        store.open_round(number, base=f"model-{number - 1}", base_nonzeros=9, learning_rate=0.1, cohort=DEVICES)
        for device in DEVICES:
            update = AcceptedUpdate(round=number, device=device, samples=10, sha256="", bytes=50_000, nonzeros=9)
            store.accept_update(update, make_report(number, joules, regrown))
        evaluation = Evaluation(accuracy=0.2 * number, loss=2.0 / number)
        if regression:
            evaluation = Evaluation(None, 2.0 / number, rmse=(2.0 / number) ** 0.5, r_squared=0.25 * number)
        closed = ClosedRound(
            round=number,
            model_id=f"model-{number}",
            seconds=10.0,
            global_sparsity=0.95,
            evaluation=evaluation,
            metrics=METRICS | of_evaluation(evaluation),
        )
        store.close_round(closed)
        MaskFiles(directory, rounds=rounds).save(number, bytes([0b1111 >> number, 0b1010]))
    store.close()
    return directory


def make_report(number: int, joules: float | None, regrown: int | None) -> Report:
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
        regrown=regrown,
    )


def draw(name: str, runs: list[ReportedRun]) -> Plot:
    """One plot of a report; all of them would take seconds."""
    (drawer,) = (each for each in FIGURES if each.__name__ == name)
    with figure_style():
        plot = drawer(runs)
    assert plot is not None
    return plot


def maps_in(plot: Plot) -> list[str]:
    """The titles of the panels that hold a map; the scale of colours has none."""
    panels = [axes for axes in plot.figure.axes if any(isinstance(each, QuadMesh) for each in axes.collections)]
    return [title for axes in panels if (title := axes.get_title())]


def points_in(plot: Plot) -> list[int]:
    """How many points each run has in the first panel."""
    return [np.asarray(line.get_xdata()).size for line in plot.figure.axes[0].lines]


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


def test_runs_of_classes_and_regressions_share_a_page(tmp_path: Path) -> None:
    classes, errors = make_run(tmp_path / "classes"), make_run(tmp_path / "errors", regression=True)
    runs = read_runs([classes, errors])
    assert points_in(draw("accuracy", runs)) == [3, 0]
    assert points_in(draw("error", runs)) == [0, 3]
    page = render_page(runs, [])
    assert "<th>accuracy</th><th>RMSE</th><th>R2</th>" in page
    assert "<td>3 of 3</td><td>60.0%</td><td>-</td><td>-</td>" in page
    assert "<td>3 of 3</td><td>-</td><td>0.8165</td><td>0.750</td>" in page
    # A table of rounds has only the columns of its own run.
    assert "<th>round</th><th>RMSE</th><th>R2</th><th>loss</th>" in page


def test_json_names_what_was_written(single: tuple[Path, dict[str, Any]]) -> None:
    run, document = single
    assert Path(document["page"]) == run / "report" / "report.html"
    assert {Path(path) for path in document["plots"]} == set((run / "report").glob("*.png"))


@pytest.mark.heavy
def test_plots_come_as_svg_too_where_asked_for_and_the_same_ones_each_time(
    single: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run, _ = single
    for out in ("first", "second"):
        main([str(run), "--out", str(tmp_path / out), "--svg"])
    drawn = sorted((tmp_path / "first").glob("*.svg"))
    assert [path.stem for path in drawn] == sorted(path.stem for path in (tmp_path / "first").glob("*.png"))
    assert all(b"<svg" in path.read_bytes() for path in drawn)
    assert all(path.read_bytes() == (tmp_path / "second" / path.name).read_bytes() for path in drawn)
    for plot in (tmp_path / "first").glob("*.png"):
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


def test_no_two_of_twenty_runs_look_alike() -> None:
    looks = run_looks(20)
    assert len({tuple(sorted(look.items())) for look in looks}) == 20
    without_colour = [(look["marker"], look["linestyle"]) for look in looks]
    assert len(set(without_colour)) == 20, "told apart by colour alone, which a grey print does not have"


def test_runs_of_one_colour_differ_in_marker_and_in_line() -> None:
    looks = run_looks(20)
    for place, look in enumerate(looks):
        for other in looks[:place]:
            if other["color"] == look["color"]:
                assert other["marker"] != look["marker"]
                assert other["linestyle"] != look["linestyle"]


def test_every_line_shows_its_marker_however_short_the_run_is(tmp_path: Path) -> None:
    runs = read_runs([make_run(tmp_path / f"run-{number}", rounds=1) for number in range(9)])
    lines = draw("accuracy", runs).figure.axes[0].get_lines()
    assert [line.get_markevery() for line in lines] == [(0, 1)] * 9


def test_lines_of_one_colour_mark_different_rounds(tmp_path: Path) -> None:
    # Seven colours, and a mark every seven rounds: the case in which they would fall together.
    runs = read_runs([make_run(tmp_path / f"run-{number}", rounds=56) for number in (1, 2)]) * 4
    lines = draw("traffic", runs).figure.axes[0].get_lines()
    assert lines[0].get_color() == lines[7].get_color()
    assert [lines[0].get_markevery(), lines[7].get_markevery()] == [(0, 7), (1, 7)]


def test_legend_of_many_runs_takes_nothing_from_the_panels(tmp_path: Path) -> None:
    runs = read_runs([make_run(tmp_path / f"run-with-a-long-name-{number}") for number in range(14)])
    heights = []
    for shown in (runs[:2], runs):
        figure = draw("traffic", shown).figure
        figure.draw_without_rendering()
        heights.append(figure.axes[0].get_position().height * figure.get_figheight())
    assert heights[1] == pytest.approx(heights[0], rel=0.1)


@pytest.mark.parametrize("name", ["layers", "overlap"])
def test_every_run_has_its_map(tmp_path: Path, name: str) -> None:
    runs = read_runs([make_run(tmp_path / f"run-{number}") for number in range(10)])
    plot = draw(name, runs)
    assert maps_in(plot) == [run.label for run in runs]
    assert "left out" not in plot.caption


@pytest.mark.parametrize("name", ["layers", "overlap"])
def test_runs_beyond_the_room_for_maps_are_named_beneath_them(tmp_path: Path, name: str) -> None:
    runs = read_runs([make_run(tmp_path / f"run-{number}") for number in range(14)])
    plot = draw(name, runs)
    assert maps_in(plot) == [run.label for run in runs[:12]]
    assert "first 12 of 14 runs; left out: run-12, run-13." in plot.caption


def test_run_that_has_nothing_to_map_is_named_beneath_the_maps(tmp_path: Path) -> None:
    runs = read_runs([make_run(tmp_path / "long"), make_run(tmp_path / "short", rounds=1)])
    plot = draw("overlap", runs)
    assert maps_in(plot) == ["long"]
    assert "Nothing to map in: short." in plot.caption


def test_layers_of_every_model_have_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_run(tmp_path / "first")
    monkeypatch.setitem(METRICS, "sparsity/fc.weight", 0.4)
    runs = read_runs([first, make_run(tmp_path / "second")])
    panel = draw("layers", runs).figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["conv1", "fc"]


def test_what_grew_back_on_devices_stands_beside_what_grew_back_in_the_model(tmp_path: Path) -> None:
    runs = read_runs([make_run(tmp_path / "new", regrown=500), make_run(tmp_path / "old")])
    plot = draw("sparsity", runs)
    panels = {axes.get_title(): axes for axes in plot.figure.axes}
    drawn = [np.asarray(line.get_ydata()).tolist() for line in panels["grown back on a device"].get_lines()]
    assert drawn == [[500.0, 500.0], []]
    assert "not yet pruned" in plot.caption


def test_panel_of_devices_is_absent_where_no_run_counted_there(tmp_path: Path) -> None:
    plot = draw("sparsity", read_runs([make_run(tmp_path / "old")]))
    assert [axes.get_title() for axes in plot.figure.axes] == ["sparsity", "grown back in the model"]
    assert "not yet pruned" not in plot.caption


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
