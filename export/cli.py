"""`sparsyedge export`: write training artifacts for a model, a data set and a method, checked against torch."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from pathlib import Path
from typing import Any

from sparsyedge.edge.arguments import Parser
from sparsyedge.edge.artifacts import Artifacts, Parameter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.methods import METHODS, Method, make_method
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.models import MODELS, ModelSpec
from sparsyedge.export.verify import Parity, verify

__all__ = ["DATASETS", "export_model", "main", "make_method", "make_parser", "model_for"]

# Input shape (channels, height, width) and classes: all that an export has to know of a data set.
DATASETS: dict[str, tuple[tuple[int, int, int], int]] = {
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "digits": ((3, 32, 32), 10),
    "speech_commands": ((1, 1, 8000), 35),
    "speech_commands_mel": ((1, 40, 98), 35),
}


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge export`."""
    arguments = make_parser().parse_args(argv)
    shape, classes = DATASETS[arguments.dataset]
    spec = ModelSpec(
        model=arguments.model or model_for(arguments.dataset),
        width=arguments.width,
        classes=arguments.classes or classes,
        input_shape=tuple(arguments.input_shape) if arguments.input_shape else shape,
    )
    method = _method(arguments)
    artifacts, parity = export_model(spec, method, arguments.out, seed=arguments.seed)
    print(_as_json(artifacts, parity) if arguments.json else _as_text(artifacts, parity))
    return 0


def model_for(dataset: str) -> str:
    """The model that a data set is trained with where none is named: sound needs the larger stem."""
    return "resnet18-7x7" if dataset.startswith("speech_commands") else "resnet18"


def _method(arguments: argparse.Namespace) -> Method:
    """The method of the flags; values of --method-option are written as in TOML, text also without quotes."""
    options: dict[str, Any] = {
        key: getattr(arguments, key) for key in ("sparsity", "beta") if getattr(arguments, key) is not None
    }
    for option in arguments.method_option:
        key, _, value = option.partition("=")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return make_method(arguments.method, **options)


def export_model(spec: ModelSpec, method: Method, directory: Path, *, seed: int) -> tuple[Artifacts, Parity]:
    """Artifacts in `directory` that train as torch does; nothing is left there when they do not."""
    if spec.width < 1 or spec.classes < 2 or min(spec.input_shape) < 1:
        raise ConfigError(
            f"width {spec.width}, classes {spec.classes}, input shape {spec.input_shape}: "
            f"width and shape must be at least 1, classes at least 2"
        )
    return build_artifacts(spec, method, directory, seed=seed, check=verify)


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge export", description="Write ONNX training artifacts with a manifest, checked against torch."
    )
    parser.add_argument("--model", choices=sorted(MODELS), help="(default: the one that suits the data set)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (default: %(default)s)")
    parser.add_argument("--dataset", choices=sorted(DATASETS), default="cifar10", help="sets input shape and classes")
    parser.add_argument("--classes", type=int, help="another number of classes than the data set's")
    parser.add_argument("--input-shape", type=int, nargs=3, metavar=("C", "H", "W"), help="another input shape")
    parser.add_argument("--method", choices=sorted(METHODS), default="sparsyfed", help="see `sparsyedge methods`")
    parser.add_argument("--sparsity", type=float, help="target of the pruning (default: 0.95)")
    parser.add_argument("--beta", type=float, help="exponent of Powerpropagation (default: 1.25)")
    parser.add_argument(
        "--method-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another option of the method, as in the [method] table of a run file; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _as_text(artifacts: Artifacts, parity: Parity) -> str:
    manifest = artifacts.manifest
    trainable = [p for p in manifest.parameters if p.trainable]
    lines = [
        f"{manifest.model} width {manifest.width}, {_count(trainable):,} parameters "
        f"({_count([p for p in trainable if p.prunable]):,} prunable), method {manifest.method.name}",
        f"agrees with torch over {parity.steps} teacher-forced steps: loss {parity.loss:.0e}, "
        f"gradients {parity.gradient:.0e}, updated values {parity.updated:.0e} (relative L2)",
        f"plain graph agrees with torch: loss and updated values {parity.plain:.0e}",
    ]
    lines += [f"  {file.name:<16} {file.bytes:>12,} B  {file.sha256[:12]}" for file in manifest.files.values()]
    return "\n".join([*lines, f"artifacts in {artifacts.directory}"])


def _as_json(artifacts: Artifacts, parity: Parity) -> str:
    manifest = artifacts.manifest
    document = {
        "directory": str(artifacts.directory),
        "parameters": _count([p for p in manifest.parameters if p.trainable]),
        "prunable": _count([p for p in manifest.parameters if p.prunable]),
        "initial_model": manifest.initial_model,
        "parity": {"loss": parity.loss, "gradient": parity.gradient, "updated": parity.updated, "steps": parity.steps},
        "files": {role: {"name": f.name, "bytes": f.bytes, "sha256": f.sha256} for role, f in manifest.files.items()},
    }
    return json.dumps(document)


def _count(parameters: list[Parameter]) -> int:
    return sum(math.prod(parameter.shape) for parameter in parameters)
