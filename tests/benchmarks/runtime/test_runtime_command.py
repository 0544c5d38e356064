"""The benchmarks of a device's runtime run and say what they measured; how fast is for their user to judge."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fixtures.training_api import NEEDS_TRAINING_API

from sparsyedge.benchmarks import bench_command as bench
from sparsyedge.edge.errors import ConfigError

pytestmark = pytest.mark.heavy

STOCK = Path(os.environ.get("SPARSYEDGE_STOCK_PYTHON", Path(__file__).parents[3] / ".venv-stock/bin/python"))


@NEEDS_TRAINING_API
def test_bench_runtime_times_both_ways_dense_and_sparse(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["runtime", "--width", "4", "--steps", "1", "--batch", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["ms"]) == {"dense", "sparse"}
    assert all(row[key] > 0 for row in document["ms"].values() for key in ("plain", "api"))


def test_bench_predict_times_a_devices_model_beside_plain_onnxruntime(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["predict", "--width", "4", "--steps", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["ms"]) == {"ours", "plain"}
    assert all(value > 0 for value in (*document["ms"].values(), document["write_s"], document["model_mb"]))


@pytest.mark.skipif(not STOCK.is_file(), reason=f"no interpreter at {STOCK}; run `make setup`")
def test_bench_footprint_weighs_a_device_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["footprint", "--python", str(STOCK), "--width", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"onnxruntime", "numpy", "protobuf"} <= set(document["package_bytes"])
    assert not {"torch", "onnxruntime-training"} & set(document["package_bytes"])
    assert document["idle"]["idle_mb"] > 10
    assert all(row["peak_mb"] >= row["training_mb"] > 10 for row in document["training"].values())


def test_bench_footprint_names_an_interpreter_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no interpreter at nowhere"):
        bench.main(["footprint", "--python", "nowhere"])
