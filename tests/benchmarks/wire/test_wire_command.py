import json
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.benchmarks import bench_command as bench
from sparsyedge.benchmarks.wire.model_pairs import pair_from_run, synthetic_pair
from sparsyedge.coordinator.model.model_files import ModelFiles, Version
from sparsyedge.edge import cli
from sparsyedge.edge.tensors import State, count_nonzero, model_id
from sparsyedge.edge.wire.frame import encode_frame

SCHEMES = ["dense", "dense-gzip", "coo-int32", "full-lossless", "full-bf16"]
SCHEMES += ["delta-lossless", "delta-bf16", "delta-int8"]


def trained_pair(seed: int = 0) -> tuple[State, State]:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((32, 64, 3, 3), dtype=np.float32)
    weight[rng.random(weight.shape) < 0.9] = 0
    base = {"conv.weight": weight, "bn.weight": rng.random(32, dtype=np.float32)}
    state = {name: (tensor * 1.01).astype(np.float32) for name, tensor in base.items()}
    state["conv.weight"][np.abs(state["conv.weight"]) < 0.05] = 0
    return base, state


@pytest.fixture
def pair_file(tmp_path: Path) -> Path:
    base, state = trained_pair()
    # As with recorded pairs, the base has prunable weights only.
    np.savez(
        tmp_path / "pair.npz",
        **{f"cur/{name}": tensor for name, tensor in state.items()},  # type: ignore[arg-type]
        **{"prev/conv.weight": base["conv.weight"]},  # type: ignore[arg-type]
    )
    return tmp_path / "pair.npz"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    versions = ModelFiles(tmp_path / "run")
    base, state = trained_pair()
    older = {name: tensor + 1 for name, tensor in base.items()}
    for number, model in enumerate((older, base, state), 1):
        encoded = encode_frame(model, run="r", round_number=number, base_id=model_id(model), prunable=["conv.weight"])
        versions.save(Version(round=number, model_id=model_id(model), frame=encoded.frame))
    return tmp_path / "run"


def measure(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert cli.main(["bench", "wire", "--repeat", "1", "--json", *argv]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_json_has_every_scheme_with_its_figures(pair_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = measure(capsys, "--pair", str(pair_file))
    assert set(document) == {"source", "schemes", "default", "entropy_bound_bytes"}
    assert document["source"] == str(pair_file)
    schemes = document["schemes"]
    assert isinstance(schemes, dict)
    assert list(schemes) == SCHEMES
    for figures in schemes.values():
        assert {"bytes", "ratio", "encode_mb_s", "decode_mb_s", "max_abs_error"} <= set(figures)
        assert figures["ratio"] == schemes["dense"]["bytes"] / figures["bytes"]
    lossy = [name for name in SCHEMES if schemes[name]["max_abs_error"] > 0]
    assert lossy == ["full-bf16", "delta-bf16", "delta-int8"]
    assert document["default"] in schemes


def test_run_directory_gives_its_last_two_models(run_dir: Path) -> None:
    base, state = trained_pair()
    pair = pair_from_run(run_dir)
    assert (model_id(pair.base), model_id(pair.state)) == (model_id(base), model_id(state))
    assert pair.prunable == ("conv.weight",)


def test_run_directory_is_measured(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(capsys, "--run", str(run_dir))["source"] == str(run_dir)


def test_run_directory_with_a_single_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "wire", "--run", str(tmp_path)]) == 2
    assert "has not two models to compare; let the run close a round first" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a zip file at all", b"PK\x03\x04 cut"])
def test_pair_that_cannot_be_read_is_one_sentence(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pair.npz").write_bytes(content)
    assert cli.main(["bench", "wire", "--pair", str(tmp_path / "pair.npz")]) == 2
    assert capsys.readouterr().err.startswith("sparsyedge: error: cannot read a pair of models from")


def test_pair_without_a_base_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "pair.npz", **{"cur/w": np.ones((2, 2), dtype=np.float32)})  # type: ignore[arg-type]
    assert cli.main(["bench", "wire", "--pair", str(tmp_path / "pair.npz")]) == 2
    assert "which a pair of models needs" in capsys.readouterr().err


def test_table_fits_eighty_columns(
    pair_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["bench", "wire", "--repeat", "1", "--pair", str(pair_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(any(name in line for line in lines) for name in SCHEMES)


def test_unknown_benchmark_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "wires"]) == 2
    assert "no benchmark `wires`; did you mean `wire`?" in capsys.readouterr().err


def test_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 0
    assert all(f"  {name} " in capsys.readouterr().out for name in ["wire"])


def test_synthetic_profile_has_the_papers_density_and_a_nested_mask() -> None:
    pair = synthetic_pair(1337)
    parameters = sum(tensor.size for name, tensor in pair.state.items() if "running" not in name)
    vectors = sum(t.size for name, t in pair.state.items() if t.ndim == 1 and "running" not in name)
    assert parameters == 11_173_962
    assert parameters / (count_nonzero(pair.state, pair.prunable) + vectors) == pytest.approx(19.29, abs=0.001)
    assert all(not pair.state[name][pair.base[name] == 0].any() for name in pair.prunable)


@pytest.mark.heavy
def test_synthetic_profile_keeps_its_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    document = measure(capsys)
    schemes = document["schemes"]
    assert isinstance(schemes, dict)
    assert document["source"] == "synthetic"
    floors = {"full-lossless": 19.29, "full-bf16": 37.8, "delta-lossless": 28, "delta-bf16": 100, "delta-int8": 80}
    assert {name: schemes[name]["ratio"] > floor for name, floor in floors.items()} == dict.fromkeys(floors, True)
