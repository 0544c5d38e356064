"""`sparsyedge export`: writes training artifacts for a model, a data set and a method, checked against torch."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from pathlib import Path
from typing import Any, get_args

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.model.artifacts import Artifacts, Parameter
from sparsyedge.edge.model.methods import METHODS, Method, make_method
from sparsyedge.edge.model.training import PLAIN_SGD, Optimizer, Training, make_training
from sparsyedge.export.agreement import Parity
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.data_form import understand
from sparsyedge.export.model_spec import ModelChoices, ModelSpec
from sparsyedge.export.models import MODELS, is_own, model_for

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge export`."""
    arguments = make_parser().parse_args(argv)
    method, training = _method(arguments), _training(arguments)
    form, understood = understand(
        arguments.dataset,
        arguments.data_dir,
        input_shape=arguments.input_shape,
        classes=arguments.classes,
        outputs=arguments.outputs,
        sample_type=arguments.sample_type,
    )
    if not arguments.json:
        # Before the slow export: the user can stop it here if we misunderstood the data.
        print("\n".join(understood), flush=True)
    spec = ModelSpec.for_data(arguments.model or model_for(arguments.dataset or ""), arguments.width, form)
    choices = ModelChoices(_options(arguments.model_arg), arguments.init, arguments.train, arguments.prunable)
    artifacts, parity = export_model(
        spec, method, arguments.out, seed=arguments.seed, training=training, choices=choices
    )
    print(_as_json(artifacts, parity) if arguments.json else _as_text(artifacts, parity))
    return 0


def _method(arguments: argparse.Namespace) -> Method:
    """The method from the flags."""
    options: dict[str, Any] = {
        key: getattr(arguments, key) for key in ("sparsity", "beta") if getattr(arguments, key) is not None
    }
    return make_method(arguments.method, **(options | _options(arguments.method_option)))


def _training(arguments: argparse.Namespace) -> Training:
    """The training from the flags."""
    return make_training(**({"optimizer": arguments.optimizer} | _options(arguments.training_option)))


def _options(given: list[str]) -> dict[str, Any]:
    """Options as KEY=VALUE, with values in TOML; quotes around text are optional."""
    options: dict[str, Any] = {}
    for option in given:
        key, _, value = option.partition("=")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return options


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge export", description="Write ONNX training artifacts with a manifest, checked against torch."
    )
    _add_model_arguments(parser)
    _add_data_arguments(parser)
    parser.add_argument("--method", choices=sorted(METHODS), default="sparsyfed", help="see `sparsyedge methods`")
    parser.add_argument("--sparsity", type=float, help="target for pruning (default: 0.95)")
    parser.add_argument("--beta", type=float, help="Powerpropagation exponent (default: 1.25)")
    parser.add_argument(
        "--method-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another method option, as in the [method] table of a run file; repeat for several",
    )
    parser.add_argument(
        "--optimizer", choices=get_args(Optimizer), default="sgd", help="how devices take a step (default: %(default)s)"
    )
    parser.add_argument(
        "--training-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another option of the [training] table of a run file; repeat for several",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder to create")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _add_model_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME|FILE.py:CALLABLE|MODULE:CALLABLE",
        help=f"one of {', '.join(sorted(MODELS))}, or what makes a torch module of your own (default: chosen for the "
        "data set)",
    )
    parser.add_argument(
        "--model-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument for your own callable; repeat for several. It gets `classes`, `outputs` and `input_shape` "
        "from the data if it takes them",
    )
    parser.add_argument(
        "--init", type=Path, metavar="FILE", help="weights to start from: .safetensors, or a state dict saved by torch"
    )
    parser.add_argument(
        "--train",
        default="all",
        metavar="all|last:N|PATTERN",
        help="which parameters train: the last N layers, or names that match, as in `head.*,norm.*` "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--prunable",
        metavar="PATTERN",
        help="which parameters are pruned (default: the weights of convolutions and linear layers)",
    )
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (default: %(default)s)")


def _add_data_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--dataset",
        metavar="FILE.npz|DIR|NAME",
        help=f"takes shape, classes and class names from this data; by name: {', '.join(DATASETS)}",
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where to look for the data (default: $SPARSYEDGE_DATA, then the user's cache)"
    )
    parser.add_argument("--classes", type=int, help="number of classes, without --dataset")
    parser.add_argument("--outputs", type=int, help="number of outputs of a regression, instead of --classes")
    parser.add_argument(
        "--input-shape",
        type=int,
        nargs="+",
        metavar="SIZE",
        help="shape of one sample, without --dataset: CHANNELS HEIGHT WIDTH of an image, CHANNELS LENGTH of a signal, "
        "FEATURES, or CHANNELS DEPTH HEIGHT WIDTH",
    )
    parser.add_argument(
        "--sample-type",
        choices=get_args(SampleType),
        help="type of stored samples, without --dataset (default: uint8, pixels of 0..255, for images, else float32)",
    )


def _as_text(artifacts: Artifacts, parity: Parity) -> str:
    manifest = artifacts.manifest
    trainable = [p for p in manifest.parameters if p.trainable]
    size = "" if is_own(manifest.model) else f" width {manifest.width}"
    graphs = "agrees" if parity.by_api else "plain graph agrees"
    lines = [
        f"{manifest.model}{size}, {_count(trainable):,} parameters "
        f"({_count([p for p in trainable if p.prunable]):,} prunable), method {manifest.method.name}"
        + ("" if manifest.training == PLAIN_SGD else f", optimizer {manifest.training.optimizer}"),
        f"{graphs} with torch over {parity.steps} teacher-forced steps: loss {parity.loss:.0e}, "
        f"gradients {parity.gradient:.0e}, updated values {parity.updated:.0e} (relative L2)",
    ]
    if parity.by_api:
        lines.append(f"plain graph agrees with torch: loss and updated values {parity.plain:.0e}")
    else:
        lines.append("no files for onnxruntime-training's API: devices train the plain graph on any onnxruntime")
    lines += [f"  {file.name:<16} {file.bytes:>12,} B  {file.sha256[:12]}" for file in manifest.files.values()]
    return "\n".join([*lines, f"artifacts in {artifacts.directory}"])


def _as_json(artifacts: Artifacts, parity: Parity) -> str:
    manifest = artifacts.manifest
    document = {
        "directory": str(artifacts.directory),
        "parameters": _count([p for p in manifest.parameters if p.trainable]),
        "prunable": _count([p for p in manifest.parameters if p.prunable]),
        "initial_model": manifest.initial_model,
        "input_shape": manifest.input_shape,
        "sample_type": manifest.sample_type,
        "task": manifest.task,
        "classes": manifest.classes,
        "class_names": manifest.class_names,
        "parity": {"loss": parity.loss, "gradient": parity.gradient, "updated": parity.updated, "steps": parity.steps},
        "files": {role: {"name": f.name, "bytes": f.bytes, "sha256": f.sha256} for role, f in manifest.files.items()},
    }
    return json.dumps(document)


def _count(parameters: list[Parameter]) -> int:
    return sum(math.prod(parameter.shape) for parameter in parameters)
