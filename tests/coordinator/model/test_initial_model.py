"""Runs that start from the user's own model: allowed sources, refusals, and the way to the devices."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from fixtures.dense_way import average, distance
from fixtures.scripted_fleet import Fleet, answer
from safetensors.torch import save_file

from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.model.initial_model import INITIAL_NAME, read_given_model
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.reparametrise import effective_weights
from sparsyedge.edge.tensors import State, model_id

WEIGHT = "fc.weight"


@pytest.fixture
def theta(initial: State) -> State:
    """A network as torch trains it: effective weights, a tenth of them pruned away."""
    generator = np.random.default_rng(5)
    state = {name: tensor + generator.random(tensor.shape, dtype=np.float32) for name, tensor in initial.items()}
    state[WEIGHT][:, ::10] = 0
    return state


def another_method(artifacts: Artifacts, folder: Path, name: str, **options: object) -> Artifacts:
    """The same model, exported for another method."""
    manifest = msgspec.structs.replace(artifacts.manifest, method=make_method(name, **options))
    folder.mkdir()
    other = Artifacts(folder, manifest)
    other.save_manifest()
    return other


def saved(path: Path, state: State) -> Path:
    """The state as its user would save it, with BatchNorm's batch counter."""
    tensors = {name: torch.from_numpy(tensor) for name, tensor in state.items()}
    tensors["bn.num_batches_tracked"] = torch.tensor(42)
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return path


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.npz", "model.safetensors", "MODEL.NPZ"])
def test_weights_in_a_file_are_what_the_network_computes_with(
    name: str, theta: State, artifacts: Artifacts, tmp_path: Path
) -> None:
    given = read_given_model(saved(tmp_path / name, theta), artifacts)
    method = artifacts.manifest.method
    assert method.beta == 1.25
    np.testing.assert_allclose(effective_weights(method, given.state[WEIGHT]), theta[WEIGHT], rtol=1e-6)
    assert not given.state[WEIGHT][:, ::10].any()
    assert all((given.state[other] == theta[other]).all() for other in theta if other != WEIGHT)
    assert given.origin == str(tmp_path / name)


@pytest.mark.parametrize("name", ["dense", "topk", "sparsyfed", "spectral", "naive-powerprop", "zerofl"])
def test_every_method_with_an_inverse_begins_from_the_same_network(
    name: str, theta: State, artifacts: Artifacts, tmp_path: Path
) -> None:
    other = another_method(artifacts, tmp_path / "other", name)
    given = read_given_model(saved(tmp_path / "model.npz", theta), other)
    np.testing.assert_allclose(effective_weights(other.manifest.method, given.state[WEIGHT]), theta[WEIGHT], rtol=1e-5)


def test_method_without_an_inverse_says_so(theta: State, artifacts: Artifacts, tmp_path: Path) -> None:
    other = another_method(artifacts, tmp_path / "other", "auto-beta")
    with pytest.raises(ConfigError, match=r"key `initial` has value .*: method auto-beta derives its exponents"):
        read_given_model(saved(tmp_path / "model.npz", theta), other)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (
            {"fc.weight": np.ones((7, 512), np.float32)},
            r"tensor fc.weight has shape \(7, 512\), and \(4, 512\) in the model in .*artifacts",
        ),
        ({"fc.bias": None}, r"it lacks tensor fc.bias, which the model in"),
        (
            {"fc.bias": None, "module.fc.bias": np.ones(4, np.float32)},
            r"it lacks tensor fc.bias \(there is module.fc.bias\)",
        ),
        ({"head.weight": np.ones(3, np.float32)}, r"it has tensor head.weight, which the model in .* lacks"),
        ({"fc.bias": np.ones(4, np.int64)}, r"tensor fc.bias has type int64; convert it to float32"),
        ({"fc.bias": np.full(4, np.nan, np.float32)}, r"tensor fc.bias holds NaN"),
        ({"fc.bias": np.full(4, 1e300)}, r"tensor fc.bias holds NaN, infinity or a number beyond float32"),
        ({"bn.running_var": np.full(4, -1.0, np.float32)}, r"tensor bn.running_var holds a negative variance"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(
    tensors: dict[str, np.ndarray | None], sentence: str, theta: State, artifacts: Artifacts, tmp_path: Path
) -> None:
    state = {name: tensor for name, tensor in (theta | tensors).items() if tensor is not None}
    path = saved(tmp_path / "model.npz", state)
    with pytest.raises(ConfigError, match=rf"key `initial` has value '.*model.npz': {sentence}"):
        read_given_model(path, artifacts)


def test_other_files_are_refused_with_a_way_out(theta: State, artifacts: Artifacts, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({name: torch.from_numpy(tensor) for name, tensor in theta.items()}, path)
    with pytest.raises(
        ConfigError, match=r"allowed are a run directory, .npz and .safetensors; from torch, write numpy"
    ):
        read_given_model(path, artifacts)
    with pytest.raises(ConfigError, match=r"has value '.*absent.npz': there is no such file or run directory"):
        read_given_model(tmp_path / "absent.npz", artifacts)
    with pytest.raises(ConfigError, match=r"key `initial` has value .*: no run in .*it has no run.sqlite"):
        read_given_model(tmp_path, artifacts)


def test_the_sign_of_a_zero_does_not_make_another_model(theta: State, artifacts: Artifacts, tmp_path: Path) -> None:
    plain = read_given_model(saved(tmp_path / "plain.npz", theta), artifacts)
    theta[WEIGHT][:, ::10] *= np.float32(-1)
    signed = read_given_model(saved(tmp_path / "signed.npz", theta), artifacts)
    assert model_id(signed.state) == model_id(plain.state)


# ---- runs ------------------------------------------------------------------------------------------------------------


class BegunFleet:
    """A fleet whose run begins from a file, as `prepare` would have it read."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self.fleet = fleet
        self.given = read_given_model(path, fleet.artifacts)
        fleet.config = msgspec.structs.replace(fleet.config, initial=str(path), rounds=2, cohort_size=1)
        (self.device,) = fleet.join("d1")
        fleet.origin, fleet.first = self.given.origin, self.given.state

    def deliver(self, number: int) -> None:
        self.device.deliver(self.device.until_round(number))


@pytest.fixture
def begun(fleet: Fleet, theta: State, tmp_path: Path) -> BegunFleet:
    return BegunFleet(fleet, saved(tmp_path / "model.npz", theta))


@pytest.mark.mosquitto
def test_devices_fetch_the_model_of_round_1(begun: BegunFleet) -> None:
    fleet, device = begun.fleet, begun.device
    run = fleet.start()
    task = device.until_round(1)
    assert task.model_id == model_id(begun.given.state) != fleet.artifacts.manifest.initial_model
    assert model_id(device.download(task)) == task.model_id
    device.deliver(task)
    begun.deliver(2)
    summary = run.result()
    assert summary.run.model_id == model_id(average([(10, answer("d1", 2, fleet.initial))]))
    assert summary.run.began_from == begun.given.origin


@pytest.mark.mosquitto
def test_distances_are_those_to_the_model_that_the_run_began_from(begun: BegunFleet) -> None:
    fleet = begun.fleet
    run = fleet.start()
    begun.deliver(1)
    begun.deliver(2)
    run.result()
    with closing(fleet.store()) as store:
        figures = store.metrics()
    trained = [parameter.name for parameter in fleet.artifacts.manifest.parameters if parameter.trainable]
    for number in (1, 2):
        expected, _ = distance(begun.given.state, average([(10, answer("d1", number, fleet.initial))]), trained)
        assert figures[number]["l2_global"] == pytest.approx(expected)


@pytest.mark.mosquitto
@pytest.mark.parametrize("last", [1, 2])
def test_a_run_goes_on_although_its_file_is_gone(last: int, begun: BegunFleet, tmp_path: Path) -> None:
    fleet, device = begun.fleet, begun.device
    run = fleet.start()
    for number in range(1, last):
        begun.deliver(number)
    task = device.until_round(last)
    run.coordinator.interrupt()
    run.result()
    assert (fleet.config.run_path / "model.onnx").exists() == (last == 2)
    (tmp_path / "model.npz").unlink()
    device.task = None
    # An existing run does not read the file again, so only the checkpoint's state is known.
    fleet.first, fleet.origin = fleet.initial, ""
    run = fleet.start()
    again = device.until_round(last)
    assert again.model_id == task.model_id
    assert model_id(device.download(again)) == task.model_id
    for number in range(last, 3):
        begun.deliver(number)
    assert run.result().run.began_from == begun.given.origin


@pytest.mark.mosquitto
def test_another_model_to_begin_from_is_another_run(begun: BegunFleet) -> None:
    fleet = begun.fleet
    run = fleet.start()
    begun.device.until_round(1)
    run.coordinator.interrupt()
    run.result()
    with pytest.raises(RunError, match=r"was begun with `initial` = .*model.npz\", the config now says \"other.npz\""):
        fleet.start(initial="other.npz").result()
    with pytest.raises(RunError, match=r"was begun with `initial` = .*model.npz\", the config now says null"):
        fleet.start(initial=None).result()


@pytest.mark.mosquitto
def test_a_run_that_lost_the_model_that_it_began_from_says_so(begun: BegunFleet) -> None:
    fleet = begun.fleet
    run = fleet.start()
    begun.device.until_round(1)
    run.coordinator.interrupt()
    run.result()
    path = fleet.config.run_path / INITIAL_NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"the model that the run began from, in .*initial.frame, is damaged"):
        fleet.start().result()


@pytest.fixture
def finished(fleet: Fleet) -> tuple[Path, str]:
    """The directory of a finished run, and the id of its model."""
    (device,) = fleet.join("d1")
    run = fleet.start(rounds=1, cohort_size=1)
    device.deliver(device.until_round(1))
    return fleet.config.run_path, run.result().run.model_id


@pytest.mark.mosquitto
def test_a_run_of_the_same_method_gives_its_model_bit_for_bit(
    finished: tuple[Path, str], artifacts: Artifacts, tmp_path: Path
) -> None:
    run_dir, identity = finished
    given = read_given_model(run_dir, artifacts)
    assert model_id(given.state) == identity
    assert given.origin == f"run r1 in {run_dir}, round 1"
    # Other artifacts, but their method gives weights the same meaning.
    twin = another_method(artifacts, tmp_path / "twin", "sparsyfed-no-act")
    assert model_id(read_given_model(run_dir, twin).state) == identity


@pytest.mark.mosquitto
def test_a_run_of_another_method_gives_the_same_network(
    finished: tuple[Path, str], artifacts: Artifacts, tmp_path: Path
) -> None:
    run_dir, _ = finished
    weights = read_given_model(run_dir, artifacts).state[WEIGHT]
    other = another_method(artifacts, tmp_path / "other", "sparsyfed", beta=2.0)
    given = read_given_model(run_dir, other).state[WEIGHT]
    assert (given == 0).tolist() == (weights == 0).tolist()
    np.testing.assert_allclose(
        effective_weights(other.manifest.method, given),
        effective_weights(artifacts.manifest.method, weights),
        rtol=1e-5,
    )


@pytest.mark.mosquitto
def test_a_run_without_its_manifest_or_with_another_model_is_refused(
    finished: tuple[Path, str], artifacts: Artifacts, tmp_path: Path
) -> None:
    run_dir, _ = finished
    other = another_method(artifacts, tmp_path / "other", "topk")
    (run_dir / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"the manifest of its artifacts is not in .*manifest.json"):
        read_given_model(run_dir, other)
    (run_dir / "models/2.model").unlink()
    with pytest.raises(ConfigError, match=r"key `initial` has value .*: the model of round 2 is missing"):
        read_given_model(run_dir, artifacts)


@pytest.mark.mosquitto
def test_a_run_that_closed_no_round_has_no_model(fleet: Fleet) -> None:
    (device,) = fleet.join("d1")
    run = fleet.start(cohort_size=1)
    device.until_round(1)
    with pytest.raises(ConfigError, match="run r1 has closed no round yet, so it has no model"):
        read_given_model(fleet.config.run_path, fleet.artifacts)
    run.coordinator.interrupt()
    run.result()


@pytest.mark.mosquitto
def test_status_says_where_a_run_began(begun: BegunFleet, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun.fleet.start()
    begun.deliver(1)
    begun.deliver(2)
    run.result()
    assert main(["status", str(begun.fleet.config.run_path)]) == 0
    printed = "".join(capsys.readouterr().out.splitlines())
    assert "began from" in printed
    assert "model.npz" in printed
