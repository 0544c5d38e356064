"""The command `sparsyedge bench step` on a tiny model: its document, its tables and its refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import onnx
import pytest
from fixtures.training_api import NEEDS_TRAINING_API

from sparsyedge.benchmarks import bench_command as bench
from sparsyedge.benchmarks.step.contestants import CONTESTANTS
from sparsyedge.benchmarks.step.dense_round import without_our_ops
from sparsyedge.benchmarks.step.memory import peak_mb
from sparsyedge.benchmarks.step.profiles import PROFILES, mask
from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model, state_of

# Not narrower: torch 2.13 writes beyond its memory in channels_last convolutions of fewer than 8 channels with AVX2.
QUICK = ["step", "--width", "8", "--steps", "2", "--batch", "4"]
KEYS = ["profile", "threads", "isa", "global_sparsity", "median_ms", "min_ms", "speedup", "phase_ms", "peak_mb"]


@pytest.mark.heavy
def test_the_document_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*QUICK, "--profile", "uniform95", "--json", "--peers", "torch_dense,ort_stock"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [*KEYS, "machine", "notes", "dense_ms", "update_bytes"]
    assert document["dense_ms"] == {}
    assert document["profile"] == "uniform95"
    assert document["threads"] == 1
    assert document["global_sparsity"] == pytest.approx(0.95, abs=0.02)
    names = ["sparsyedge", "torch_dense", "ort_stock"]
    assert list(document["median_ms"]) == list(document["min_ms"]) == names
    assert list(document["speedup"]) == names[1:]
    assert all(document["median_ms"][name] >= document["min_ms"][name] > 0 for name in names)
    assert list(document["phase_ms"])[-1] == "other"
    assert document["peak_mb"] == {}
    assert {"cpu", "cores", "commit", "versions"} == set(document["machine"])
    assert not [note for note in document["notes"] if "do not compute the same" in note]


@pytest.mark.heavy
@pytest.mark.parametrize("model", ["mobilenet_v2", "ds_cnn"])
def test_any_model_is_timed_under_random_masks_of_one_sparsity(capsys: pytest.CaptureFixture[str], model: str) -> None:
    options = ["--model", model, "--sparsity", "0.8", "--json", "--peers", "torch_dense,torch_sparsyfed"]
    assert bench.main([*QUICK, *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile"] == f"{model}, 80.0% of each layer"
    assert document["global_sparsity"] == pytest.approx(0.8, abs=0.01)
    assert all(document["speedup"].values())
    # Among so few values some are equal but for rounding: the second loss depends on which of them are kept.
    assert not [note for note in document["notes"] if "in step 1" in note]


@pytest.mark.heavy
def test_what_is_frozen_is_frozen_for_all_and_costs_no_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "mobilenet_v2", "--sparsity", "0.8", "--json", "--peers", "torch_dense,torch_sparsyfed"]
    documents = []
    for train in ("all", "last:1"):
        assert bench.main([*QUICK, *options, "--train", train]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    whole, last = documents
    assert last["profile"] == "mobilenet_v2, 80.0% of each layer, train last:1"
    assert last["update_bytes"]["float32"] == whole["update_bytes"]["float32"]
    assert all(10 * last["update_bytes"][codec] < whole["update_bytes"][codec] for codec in ("lossless", "bf16"))
    assert not [note for note in last["notes"] if "in step 1" in note]


def test_a_share_of_zeros_or_a_data_set_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main([*QUICK, "--sparsity", "1"])
    assert "1 is not a share of zeros, from 0 to below 1" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no data set 'nowhere'; there are: digits"):
        bench.main([*QUICK, "--dataset", "nowhere"])


@pytest.mark.heavy
def test_the_tables_fit_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert bench.main([*QUICK, "--peers", "torch_dense"]) == 0
    output = capsys.readouterr().out
    assert "torch_dense" in output
    assert max(map(len, output.splitlines())) <= 80


@NEEDS_TRAINING_API
@pytest.mark.heavy
def test_round_1_is_timed_beside_the_same_graph_without_our_ops(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert bench.main([*QUICK, "--peers", "", "--dense"]) == 0
    output = capsys.readouterr().out
    assert "training api stock" in output
    assert max(map(len, output.splitlines())) <= 80


@NEEDS_TRAINING_API
def test_the_stock_graph_has_no_op_of_ours_and_the_same_stock_ones(tiny: Artifacts, tmp_path: Path) -> None:
    def operators(artifacts: Artifacts) -> Counter[tuple[str, str]]:
        return Counter((node.domain, node.op_type) for node in onnx.load(artifacts.path("training")).graph.node)

    ours, stock = operators(tiny), operators(without_our_ops(tiny, tmp_path / "stock"))
    replaced = sum(count for (domain, _), count in ours.items() if domain == OP_DOMAIN)
    assert replaced > 0
    assert not any(domain == OP_DOMAIN for domain, _ in stock)
    kept = {key: count for key, count in ours.items() if key[0] != OP_DOMAIN}
    assert dict(stock - Counter(kept)) == {("", "Identity"): replaced}


@NEEDS_TRAINING_API
def test_memory_is_weighed_in_a_process_of_its_own(tiny: Artifacts) -> None:
    model = build_model(ModelSpec("resnet18", 4, 5, (3, 16, 16)), beta=1.25, seed=3)
    state = mask(state_of(model), tiny.manifest.prunable, PROFILES["trained95"], seed=0)
    workload = Workload.draw(tiny, state, batch=4, threads=1, seed=0)
    (variant,) = CONTESTANTS["ort_stock"]
    assert 0 < peak_mb(variant, workload, steps=2) < 500


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["stp"], "did you mean `step`"),
        (["nothing"], "allowed are .*step"),
        ([*QUICK, "--profile", "uniform42"], "no profile 'uniform42'; there are: trained95"),
        ([*QUICK, "--peers", "torch_dense,jax"], "no peer 'jax'; there are: torch_dense"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        bench.main(arguments)


def test_without_arguments_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 0
    assert "step " in capsys.readouterr().out
