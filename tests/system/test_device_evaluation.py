"""A run whose devices evaluate on their own samples while their data changes: real broker, processes and files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from system.test_federated_run import LIMIT_S, SPARSYEDGE, Processes, processes, rounds_closed, wait_until

from sparsyedge.coordinator.record.records import MemberRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import Samples, load
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = [pytest.mark.heavy, pytest.mark.mosquitto]

__all__ = ["processes"]

IMAGES, ARRAYS, FEW, ENOUGH = 40, 30, 5, 24


def write_images(folder: Path, samples: Samples, places: range) -> None:
    for place in places:
        image = folder / str(samples.y[place]) / f"{place}.ppm"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"P6\n32 32\n255\n" + samples.x[place].astype(np.uint8).transpose(1, 2, 0).tobytes())


def write_arrays(path: Path, samples: Samples, places: range, *, test: range | None = None) -> None:
    pixels = samples.x.astype(np.uint8).transpose(0, 2, 3, 1)
    parts = {"x_train": pixels[places.start : places.stop], "y_train": samples.y[places.start : places.stop]}
    if test is not None:
        parts |= {"x_test": pixels[test.start : test.stop], "y_test": samples.y[test.start : test.stop]}
    new = path.with_suffix(".new.npz")
    np.savez(new, allow_pickle=False, names=[str(number) for number in range(10)], **parts)
    new.rename(path)


def write_config(folder: Path, name: str, dataset: str, port: int, data: str = "") -> None:
    (folder / f"{name}.toml").write_text(
        f'id = "{name}"\nwork_dir = "{folder / "work"}"\nthreads = 1\nidle_s = 0\n[broker]\nport = {port}\n'
        f'[data]\ndataset = "{folder / dataset}"\n{data}\n'
    )


def write_run(folder: Path, artifacts: Path, port: int) -> Path:
    config = folder / "run.toml"
    config.write_text(
        f'name = "growing"\nartifacts = "{artifacts}"\nrun_dir = "{folder / "run"}"\ndataset = "digits"\nrounds = 3\n'
        f"cohort_size = 3\nseed = 1\ndeadline_s = {LIMIT_S}\nholdout = 0.25\n"
        f"[broker]\nport = {port}\n"
    )
    return config


@pytest.fixture
def digits() -> Samples:
    return load("digits", None).train


def read(run_dir: Path, look: Callable[[Store], object]) -> object:
    with closing(Store.open(run_dir)) as store:
        return look(store)


def member(run_dir: Path, name: str) -> MemberRecord | None:
    with closing(Store.open(run_dir)) as store:
        return next((each for each in store.members() if each.device == name), None)


def evaluate(run_dir: Path) -> dict[str, Any]:
    command = [SPARSYEDGE, "coordinator", "evaluate", str(run_dir), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(2 * LIMIT_S)
def test_devices_evaluate_on_their_own_samples_and_go_on_while_their_data_changes(
    mosquitto: int, digits_artifacts: Artifacts, processes: Processes, tmp_path: Path, digits: Samples
) -> None:
    run_dir = tmp_path / "run"
    write_images(tmp_path / "photos", digits, range(IMAGES))
    write_arrays(tmp_path / "arrays.npz", digits, range(100, 100 + ARRAYS), test=range(200, 220))
    write_arrays(tmp_path / "few.npz", digits, range(300, 300 + FEW))
    write_config(tmp_path, "photos", "photos", mosquitto)
    write_config(tmp_path, "arrays", "arrays.npz", mosquitto)
    write_config(tmp_path, "few", "few.npz", mosquitto, data="min_samples = 20")
    for name in ("photos", "arrays", "few"):
        processes.start(name, "edge", "--config", str(tmp_path / f"{name}.toml"))
    config = write_run(tmp_path, digits_artifacts.directory, mosquitto)
    coordinator = processes.start("coordinator", "coordinator", "run", str(config))

    def is_unfit(name: str) -> bool:
        try:
            found = member(run_dir, name)
        except RunError:
            return False  # the run is only being set up
        return found is not None and bool(found.unfit)

    wait_until(lambda: is_unfit("few"), "word of the device with too little data", processes)
    few = member(run_dir, "few")
    assert few is not None
    assert few.unfit == "too little data, 5 of at least 20 samples"
    assert rounds_closed(run_dir) == 0, "the run waits for it"

    # New, changed, removed and broken images, and an .npz that is cut short.
    images = sorted((tmp_path / "photos").glob("*/*.ppm"))
    images[0].unlink()
    images[1].write_bytes(images[2].read_bytes())
    write_images(tmp_path / "photos", digits, range(400, 403))
    (images[0].parent / "half.ppm").write_bytes(b"P6\n32 32\n255\n\0\0\0")
    whole = (tmp_path / "arrays.npz").read_bytes()
    (tmp_path / "arrays.npz").write_bytes(whole[: len(whole) // 2])
    during = evaluate(run_dir)
    assert (during["evaluation"]["asked"], during["evaluation"]["round"]) == (2, 0)
    assert [each["device"] for each in during["devices"] if each["samples"]] == ["photos"], "arrays lost its test part"
    assert "the samples from before stay" in processes.log("arrays")

    (tmp_path / "arrays.npz").write_bytes(whole)
    write_arrays(tmp_path / "few.npz", digits, range(300, 300 + ENOUGH))
    assert coordinator.wait(LIMIT_S) == 0, processes.log("coordinator")

    with closing(Store.open(run_dir)) as store:
        found = store.device_evaluations()
        (note,) = (note for note in store.data_notes() if note.device == "photos" and note.added)
        figures = store.evaluation_figures()
        updates = {each.device: each.updates for each in store.members()}
        samples = store.samples(3)
    assert updates == {"photos": 3, "arrays": 3, "few": 3}
    assert (note.round, note.added, note.changed, note.removed, note.broken) == (1, 3, 1, 1, 1)
    assert "half.ppm ends after 3 of 3072 bytes" in note.trouble
    trained = [each for each in found if not each.evaluation]
    assert all(each.own_loss is not None and each.own_accuracy is not None for each in trained)
    held_out = {each.device: each.samples for each in trained if each.round == 3}
    assert held_out["arrays"] == 20, "its own test part"
    assert samples == {
        "photos": IMAGES + 2 - held_out["photos"],
        "arrays": ARRAYS,
        "few": ENOUGH - held_out["few"],
    }, "what is held out is not trained on"
    assert set(figures) == {1, 2, 3}
    assert figures[3]["eval_samples"] == sum(held_out.values())

    after = evaluate(run_dir)
    assert after["evaluation"]["round"] == 3
    assert [each["device"] for each in after["devices"]] == ["arrays", "few", "photos"]
    assert read(run_dir, lambda store: store.run().state) == "finished"
