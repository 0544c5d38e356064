"""What a release proves in its own environment before it is put in use.

    python -m sparsyedge.edge.upgrade.self_check --config device.toml --work-dir DIR [--manifest SHA256]

It imports the whole device, reads the device's config, loads the op library and the wire codec, and takes one training
step: in the artifacts that the device holds, if there are any, else in a graph of its own. Prints one sentence and
exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import numpy as np

import sparsyedge.edge
from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.config import DeviceConfig, load_config
from sparsyedge.edge.errors import ArtifactError, SparsyedgeError
from sparsyedge.edge.inference.onnx_format import FLOAT, Graph, Model, node, value_info
from sparsyedge.edge.inference.protobuf import bytes_field, integer_field, text_field
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, decode_manifest
from sparsyedge.edge.native import library_path
from sparsyedge.edge.security.signature import check_library
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.training.onnx_runtime import open_graph
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["check", "main"]

BATCH = 2
"""BatchNorm needs more than one sample."""
LEARNING_RATE = 0.01


def main(argv: list[str]) -> int:
    """Check this installation; returns the exit code."""
    parser = argparse.ArgumentParser(prog="self_check", description="Check this sparsyedge before it is put in use.")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--manifest", default="")
    options = parser.parse_args(argv)
    try:
        check(options.config, options.work_dir, options.manifest)
    except SparsyedgeError as error:
        print(error)
        return 1
    except Exception as error:  # whatever it is, this version must not be put in use
        print(f"{type(error).__name__}: {error}")
        return 1
    print(f"{own_software()} is in order")
    return 0


def check(config: Path | None, work_dir: Path, manifest: str) -> None:
    """Raise if this installation could not do the device's work; `manifest` is that of the run under way, if any."""
    for module in pkgutil.walk_packages(sparsyedge.edge.__path__, "sparsyedge.edge."):
        # pkgutil takes our shared libraries for modules.
        if not module.name.endswith("__main__") and ".native." not in module.name:
            importlib.import_module(module.name)
    if config is not None:
        load_config(config, DeviceConfig)
    _check_codec()
    artifacts = _held_artifacts(work_dir / "artifacts", manifest)
    if artifacts is None:
        _step_in_own_graph()
    else:
        if artifacts.directory.name == manifest:
            check_library(artifacts.manifest, library_path())
        _step_in(artifacts)


def _held_artifacts(folder: Path, manifest: str) -> Artifacts | None:
    """The artifacts of this manifest, or else the newest that the device holds."""
    held = sorted(folder.glob(f"*/{MANIFEST_NAME}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    held.sort(key=lambda path: path.parent.name != manifest)
    if not held:
        return None
    return Artifacts(held[0].parent, decode_manifest(held[0].read_bytes(), source=str(held[0])))


def _step_in(artifacts: Artifacts) -> None:
    holder = SessionHolder(threads=1)
    if not all(artifacts.path(role).is_file() for role in holder.roles if role in artifacts.manifest.files):
        _step_in_own_graph()
        return
    holder.put(artifacts, artifacts.directory.name)
    manifest = artifacts.manifest
    x = np.random.default_rng(0).standard_normal((BATCH, *manifest.input_shape)).astype(np.float32)
    if manifest.task == "regression":
        y = np.zeros((BATCH, manifest.outputs), dtype=np.float32)
        loss = holder.session(None, round_number=1).train_step(x, y, LEARNING_RATE)
    else:
        labels = np.arange(BATCH, dtype=np.int64) % manifest.classes
        loss = holder.session(None, round_number=1).train_step(x, labels, LEARNING_RATE)
    if not np.isfinite(loss):
        raise ArtifactError(f"a training step in {artifacts.directory} gives the loss {loss}")


def _check_codec() -> None:
    """Write a small model as a frame and read it back."""
    state: dict[str, FloatArray] = {"w": np.eye(4, dtype=np.float32)}
    frame = frame_of(state, run="self-check", round_number=1, base_id="0" * 64, prunable=("w",))
    if not np.array_equal(decode_frame(frame, {"w": (4, 4)}).state["w"], state["w"]):
        raise ArtifactError("the wire codec does not give back what was written")


def _step_in_own_graph() -> None:
    """One step of least squares, w - rate x'(xw - y), in a session with our op library; compared with numpy."""
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((3, 1), dtype=np.float32)
    w, rate = np.full((2, 1), 0.5, dtype=np.float32), np.full((1, 1), LEARNING_RATE, dtype=np.float32)
    session = open_graph(Path("the self-check's own graph"), threads=1, content=_own_graph())
    (found,) = session.run(["next"], {"x": x, "y": y, "w": w, "rate": rate})
    if not np.allclose(found, w - rate * (x.T @ (x @ w - y)), rtol=1e-5):
        raise ArtifactError("a training step in onnxruntime gives other numbers than numpy")


def _own_graph() -> bytes:
    nodes = (
        node("MatMul", ("x", "w"), "p"),
        node("Sub", ("p", "y"), "e"),
        node("Transpose", ("x",), "t", perm=(1, 0)),
        node("MatMul", ("t", "e"), "g"),
        node("Mul", ("g", "rate"), "s"),
        node("Sub", ("w", "s"), "next"),
    )
    shapes = {"x": (3, 2), "y": (3, 1), "w": (2, 1), "rate": (1, 1)}
    graph = b"".join(bytes_field(Graph.NODE, each) for each in nodes) + text_field(2, "self-check")
    graph += b"".join(bytes_field(Graph.INPUT, value_info(name, shape, FLOAT)) for name, shape in shapes.items())
    graph += bytes_field(Graph.OUTPUT, value_info("next", (2, 1), FLOAT))
    opset = bytes_field(Model.OPSET_IMPORT, text_field(1, "") + integer_field(2, 13))
    return integer_field(Model.IR_VERSION, 8) + bytes_field(Model.GRAPH, graph) + opset


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
