"""`sparsyedge predict MODEL FILE...`: classifies files with a delivered model. Needs only a device's install."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.inference.description import Description
from sparsyedge.edge.inference.inputs import Batch, read_batches
from sparsyedge.edge.inference.predictor import Predictor
from sparsyedge.edge.tensors import FloatArray

__all__ = ["main", "make_parser"]


@dataclass(frozen=True)
class Prediction:
    """The model's answer for one sample."""

    file: str
    sample: int | None
    """The sample's index in a file of many."""
    resized_from: tuple[int, int] | None
    top: tuple[tuple[int, float], ...]
    """Classes and their probabilities, the likeliest first."""
    label: int | None

    @property
    def right(self) -> bool:
        return self.label == self.top[0][0]


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge predict`."""
    arguments = make_parser().parse_args(argv)
    predictor = Predictor(arguments.model)
    predictions = _predict(predictor, arguments.files, arguments.top)
    if arguments.json:
        print(json.dumps(_document(predictor.description, list(predictions))))
    else:
        _print(arguments.model, predictor, predictions)
    return 0


def _predict(predictor: Predictor, files: Iterable[Path], top: int) -> Iterator[Prediction]:
    for file in files:
        for batch in read_batches(file, predictor.description, predictor.sample):
            yield from _predictions(str(file), batch, predictor.probabilities(batch.x), top)


def _predictions(file: str, batch: Batch, probabilities: FloatArray, top: int) -> Iterator[Prediction]:
    for index, row in enumerate(probabilities):
        best = np.argsort(-row, kind="stable")[:top]
        yield Prediction(
            file=file,
            sample=None if batch.first is None else batch.first + index,
            resized_from=batch.resized_from,
            top=tuple((int(each), float(row[each])) for each in best),
            label=None if batch.labels is None else int(batch.labels[index]),
        )


def _print(model: Path, predictor: Predictor, predictions: Iterable[Prediction]) -> None:
    description = predictor.description
    run = _printable(description.run)
    print(f"{_printable(str(model))}: run {run}, round {description.round}, accuracy {description.accuracy:.1%}")
    _, height, width = predictor.sample
    names = [_printable(name) for name in description.class_names]
    labelled = right = 0
    for prediction in predictions:
        print(_line(prediction, names, size=f"{width}x{height}"))
        labelled += prediction.label is not None
        right += prediction.right
    if labelled:
        print(f"right: {right:,} of {labelled:,} ({right / labelled:.1%})")


def _line(prediction: Prediction, names: list[str], *, size: str) -> str:
    place = "" if prediction.sample is None else f"[{prediction.sample}]"
    resized = ""
    if prediction.resized_from is not None:
        resized = " (resized from {}x{} to {})".format(*prediction.resized_from, size)
    seen = ", ".join(f"{names[each]} {probability:.1%}" for each, probability in prediction.top)
    wrong = "" if prediction.label is None or prediction.right else f" (is {names[prediction.label]})"
    return f"{_printable(prediction.file)}{place}{resized}: {seen}{wrong}"


def _document(description: Description, predictions: list[Prediction]) -> dict[str, Any]:
    labelled = [prediction for prediction in predictions if prediction.label is not None]
    return {
        "model": {"run": description.run, "round": description.round, "accuracy": description.accuracy},
        "predictions": [_as_json(prediction, description.class_names) for prediction in predictions],
        "labelled": len(labelled),
        "right": sum(prediction.right for prediction in labelled),
    }


def _as_json(prediction: Prediction, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "file": prediction.file,
        "sample": prediction.sample,
        "resized_from": prediction.resized_from,
        "label": None if prediction.label is None else names[prediction.label],
        "top": [{"name": names[each], "probability": probability} for each, probability in prediction.top],
    }


def _printable(text: str) -> str:
    """A name made harmless to the terminal, whoever put it into the file."""
    return text if text.isprintable() else ascii(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def make_parser() -> Parser:
    """The options of `sparsyedge predict`."""
    parser = Parser(prog="sparsyedge predict", description="Classify images and .npz files with a delivered model.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.onnx or model_float.onnx of a run")
    parser.add_argument(
        "files",
        type=Path,
        metavar="FILE",
        nargs="+",
        help="an image (PPM, PGM; with Pillow also PNG, JPEG, BMP, WebP), or an .npz file with x_test, x or x_train; "
        "where it has y_test, y or y_train too, the share that is right is printed",
    )
    parser.add_argument("--top", type=_positive, default=3, help="classes to name per sample (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    return parser
