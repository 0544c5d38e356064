import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge import cli
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.frame import encode_frame

BASE: State = {
    "conv.weight": np.array([[0.0, 1.5, 0.5], [-2.0, 0.0, 0.0]], dtype=np.float32),
    "bn.bias": np.array([0.25], dtype=np.float32),
}
TRAINED: State = {**BASE, "conv.weight": np.array([[0.0, 1.25, 0.0], [-2.5, 0.0, 0.0]], dtype=np.float32)}


@pytest.fixture
def frame_path(tmp_path: Path) -> Path:
    encoded = encode_frame(
        TRAINED, run="demo", round_number=3, base_id="ab" * 32, base=BASE, codec="int8", prunable=["conv.weight"]
    )
    path = tmp_path / "update.frame"
    path.write_bytes(encoded.frame)
    return path


def test_inspect_prints_what_the_frame_holds(frame_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frame", "inspect", str(frame_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{frame_path}: frame version 2, {frame_path.stat().st_size} bytes, digest right"
    assert lines[1] == "run demo, round 3, codec int8"
    assert lines[2] == f"base {'ab' * 32}, needed to decode it"
    assert "conv.weight                                2x3          2   33.33%  dropped" in lines
    assert "bn.bias                                      1 difference" in lines
    assert "kept 2 of 6 prunable entries (33.33%)" in lines
    assert max(map(len, lines[1:])) <= 90


def test_sections_add_up_to_the_frame(frame_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frame", "inspect", str(frame_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(document["sections"].values()) == document["bytes"] == frame_path.stat().st_size
    assert document["ratio"] == 28 / document["bytes"]
    assert document["weights"][0] == {
        "name": "conv.weight",
        "shape": [2, 3],
        "kept": 2,
        "density": 1 / 3,
        "mask": "dropped",
        "difference": True,
        "scale": float(np.float32(0.5) / np.float32(127)),
    }


def test_damaged_frame_is_one_sentence(frame_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame_path.write_bytes(frame_path.read_bytes()[:-1])
    assert cli.main(["frame", "inspect", str(frame_path)]) == 2
    assert capsys.readouterr().err == (
        f"sparsyedge: error: {frame_path}: frame does not match its own digest; it was cut or altered on the way\n"
    )


def test_file_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frame", "inspect", str(tmp_path / "none.frame")]) == 2
    assert (
        capsys.readouterr().err == f"sparsyedge: error: cannot read {tmp_path}/none.frame: No such file or directory\n"
    )


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"\x1b[2Jw": np.ones(2, dtype=np.float32)}
    frame = encode_frame(state, run="\x07", round_number=1, base_id="", prunable=list(state)).frame
    (tmp_path / "x.frame").write_bytes(frame)
    assert cli.main(["frame", "inspect", str(tmp_path / "x.frame")]) == 0
    output = capsys.readouterr().out
    assert output.replace("\n", "").isprintable()


def test_inspect_needs_the_base_install_only(frame_path: Path) -> None:
    script = (
        "import sys; sys.modules.update(rich=None, torch=None, onnx=None, onnxruntime=None);"
        f"from sparsyedge.edge.cli import main; sys.exit(main(['frame', 'inspect', {str(frame_path)!r}]))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300, stdout=subprocess.DEVNULL)
