"""`sparsyedge edge predict FILE...`: asks the model that this device has received from its fleet."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.predictions import add_question, answer
from sparsyedge.edge.config import DeviceConfig, load_config
from sparsyedge.edge.device.model_place import device_folder, model_shelf
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.model_note import NOTE_NAME, ModelKind, read_note
from sparsyedge.edge.inference.preprocessing import MODEL_NAME

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """Print what this device's model says about files; raises ArtifactError if it has none yet."""
    options = make_parser().parse_args(argv)
    folder = _model_folder(load_config(options.config, DeviceConfig), options)
    note = read_note(folder / NOTE_NAME)
    measured = {"model_id": note.model_id, "sha256": note.sha256, "predict_ms": note.predict_ms}
    answer(folder / MODEL_NAME, options, extra=measured)
    return 0


def _model_folder(config: DeviceConfig, options: argparse.Namespace) -> Path:
    """The version in use. Its own folder, not the link: the link may name another one a moment later."""
    kind: ModelKind = "personal" if options.personal else "global"
    shelf = model_shelf(device_folder(config), kind)
    name = shelf.version
    if name is not None:
        return shelf.folder / name
    if kind == "personal":
        hint = (
            "it trains" if config.personalised else "it has trained with `personalised = true`: set that in its config"
        )
        raise ArtifactError(f"{config.id} has no model of its own in {shelf.current} yet; it gets one when {hint}")
    when = {
        "every": "when its coordinator opens the round after the first",
        "last": 'when its run is over; set `model = "every"` in its config to have one after each round',
        "off": 'only without `model = "off"` in its config',
    }[config.model]
    raise ArtifactError(f"{config.id} has no model in {shelf.current} yet; it gets one {when}")


def make_parser() -> Parser:
    """The options of `sparsyedge edge predict`."""
    parser = Parser(
        prog="sparsyedge edge predict",
        description="Ask the model that this device has received about images and .npz files: classes, or values.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the device's config, device.toml")
    parser.add_argument("--personal", action="store_true", help="the device's own model instead of the fleet's")
    add_question(parser)
    return parser
