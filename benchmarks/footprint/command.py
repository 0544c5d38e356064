"""`sparsyedge bench footprint`: the size of a device's install on disk, at import and in training.

It measures an environment without torch and onnxruntime-training, with a separate process for every row. Sizes count
the packages of that environment that a device needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import ConfigError

__all__ = ["main", "make_parser"]

SPARSITY = 0.95
LIMIT_S = 900
REPOSITORY = Path(__file__).resolve().parents[2]

SIZES = """
import importlib.metadata as m, json, re, sys
def bytes_of(name):
    return sum(f.locate().stat().st_size for f in m.files(name) or [] if f.locate().is_file())
def closure(name, seen):
    if name not in seen:
        seen.add(name)
        for line in m.requires(name) or []:
            if "extra ==" not in line and "python_version <" not in line:
                needed = re.match(r"[A-Za-z0-9_.-]+", line).group().lower()
                try:
                    m.version(needed)
                except m.PackageNotFoundError:
                    continue
                closure(needed, seen)
    return seen
seen = set()
for name in sys.argv[1:]:
    closure(name, seen)
print(json.dumps({name: bytes_of(name) for name in sorted(seen)}))
"""

TRAIN = """
import json, sys, time
from pathlib import Path
def rss(key="VmRSS"):
    return int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1]) / 1024
start = time.perf_counter()
import sparsyedge.edge.commands.edge_command
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.training.sparse_session import SparseSession
out = {"import_s": time.perf_counter() - start, "idle_mb": rss()}
from sparsyedge.edge.training.onnx_runtime import RUNTIME
out["runtime"] = RUNTIME
if len(sys.argv) > 1:
    import numpy as np
    from sparsyedge.edge.wire.frame import decode_frame
    artifacts = Artifacts.load(Path(sys.argv[1]))
    session = SparseSession(artifacts)
    start = time.perf_counter()
    session.load(decode_frame(Path(sys.argv[2]).read_bytes(), artifacts.manifest.shapes).state)
    out["load_s"] = time.perf_counter() - start
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.standard_normal((16, *artifacts.manifest.input_shape), dtype=np.float32)
        session.train_step(x, rng.integers(0, artifacts.manifest.classes, 16), 0.01)
    out["training_mb"] = rss()
    out["peak_mb"] = rss("VmHWM")  # getrusage would also count the process that started this one
print(json.dumps(out))
"""


def main(argv: list[str]) -> int:
    """Measure and print a table."""
    arguments = make_parser().parse_args(argv)
    if not arguments.python.is_file():
        raise ConfigError(f"no interpreter at {arguments.python}; run `make setup`, or name one with --python")
    with tempfile.TemporaryDirectory(prefix="sparsyedge-footprint-") as folder:
        site = _site(Path(folder) / "site")
        artifacts, frames = _export(arguments.width, Path(folder))
        sizes = _call(arguments.python, site, SIZES, *_needed())
        idle = _call(arguments.python, site, TRAIN)
        rows = {name: _call(arguments.python, site, TRAIN, artifacts, frame) for name, frame in frames.items()}
    document = {"package_bytes": sizes, "wheel_bytes": _size(arguments.wheel), "idle": idle, "training": rows}
    if arguments.json:
        print(json.dumps(document))
    else:
        _print(document, arguments.width)
    return 0


def _needed() -> list[str]:
    from sparsyedge.hardware.arm.requirements import requirements

    lines = requirements(REPOSITORY / "pyproject.toml", python="3.11")
    return [line.replace("<", ">").replace("=", ">").split(">")[0] for line in lines]


def _site(site: Path) -> str:
    """Copy the package into `site`, laid out as a wheel installs it; returns the path."""
    import shutil
    from importlib import metadata

    from sparsyedge.edge.native import codec_path, library_path

    for folder in ("edge", "hardware"):
        shutil.copytree(REPOSITORY / folder, site / "sparsyedge" / folder, ignore=shutil.ignore_patterns("*.so"))
    for library in (library_path(), codec_path()):
        shutil.copy(library, site / "sparsyedge/edge/native")
    information = site / "sparsyedge-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(metadata.distribution("sparsyedge").read_text("METADATA") or "")
    return str(site)


def _export(width: int, folder: Path) -> tuple[str, dict[str, str]]:
    """Artifacts, and frames with the models of round 1 and a later round, as a device gets them."""
    from sparsyedge.edge.model.checkpoint import read_initial_state
    from sparsyedge.edge.model.methods import make_method
    from sparsyedge.edge.model.prune import prune_global
    from sparsyedge.edge.wire.frame import encode_frame
    from sparsyedge.export.build import build_artifacts
    from sparsyedge.export.model_spec import ModelSpec

    spec = ModelSpec.for_data("resnet18", width, DATASETS["cifar10"].form)
    method = make_method("sparsyfed", sparsity=SPARSITY)
    artifacts, _ = build_artifacts(spec, method, folder / "artifacts", seed=0, check=lambda *made: None)
    prunable = artifacts.manifest.prunable
    start = read_initial_state(artifacts)
    frames = {}
    for name, sparsity in ((f"s = {SPARSITY}", SPARSITY), ("dense (round 1)", 0.0)):
        state = prune_global(start, prunable, sparsity)
        frame = encode_frame(state, run="footprint", round_number=1, base_id="0" * 64, prunable=prunable).frame
        path = folder / f"{sparsity}.frame"
        path.write_bytes(frame)
        frames[name] = str(path)
    return str(artifacts.directory), frames


def _call(python: Path, site: str, program: str, *arguments: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": site, "OMP_NUM_THREADS": "1"}
    command = [str(python), "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise ConfigError(f"{python} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _size(wheel: Path | None) -> int | None:
    return wheel.stat().st_size if wheel is not None and wheel.is_file() else None


def _print(document: Mapping[str, object], width: int) -> None:
    sizes, idle, rows = (document[key] for key in ("package_bytes", "idle", "training"))
    assert isinstance(sizes, dict)
    assert isinstance(idle, dict)
    assert isinstance(rows, dict)
    print("| package | MB installed |\n|---|---|")
    wheel = document["wheel_bytes"]
    if isinstance(wheel, int):
        print(f"| sparsyedge (wheel) | {wheel / 1e6:.1f} |")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"| {name} | {size / 1e6:.1f} |")
    print(f"| all it depends on | {sum(sizes.values()) / 1e6:.0f} |\n")
    print(f"ResNet-18 width {width}, batch 16, {idle['runtime']}, import {idle['import_s']:.1f} s\n")
    print("| state of the device | RSS MB | peak RSS MB | load s |\n|---|---|---|---|")
    print(f"| idle | {idle['idle_mb']:.0f} | | |")
    for name, row in rows.items():
        print(f"| training, {name} | {row['training_mb']:.0f} | {row['peak_mb']:.0f} | {row['load_s']:.1f} |")


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench footprint",
        description="Measure what a device's install takes on disk, at import and while it trains.",
    )
    add = parser.add_argument
    add("--python", type=Path, default=Path(sys.executable), help="the device's interpreter (default: this one)")
    add("--wheel", type=Path, help="also show the size of this wheel of ours")
    add("--width", type=positive, default=64, help="channels of the first stage (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser
