"""What a delivered model says about files, for the two commands that ask one. Needs only a device's install."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.inference.description import Description
from sparsyedge.edge.inference.inputs import read_batches
from sparsyedge.edge.inference.losses import RegressionErrors
from sparsyedge.edge.inference.predictor import Predictor
from sparsyedge.edge.tensors import FloatArray

__all__ = ["add_question", "answer"]


@dataclass(frozen=True)
class Prediction:
    """The model's answer for one sample."""

    file: str
    sample: int | None
    """The sample's index in a file of many."""
    resized_from: tuple[int, int] | None
    text: str
    fields: dict[str, Any]
    """The answer for a JSON document."""


class Reader(Protocol):
    """Makes sense of a model's answers, and compares them with what the files know."""

    def read(self, answers: FloatArray, labels: Labels | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """The text and the JSON fields of every answer in a batch."""

    def summary(self) -> str:
        """A line on how many answers were right, or how wrong; empty if the files do not say."""

    def totals(self) -> dict[str, Any]:
        """The same as JSON fields."""


class ClassReader:
    """Reads probabilities: the likeliest classes, and whether the first is right."""

    def __init__(self, names: tuple[str, ...], top: int) -> None:
        self._names, self._top = names, top
        self._labelled = self._right = 0

    def read(self, answers: FloatArray, labels: Labels | None) -> Iterator[tuple[str, dict[str, Any]]]:
        for index, row in enumerate(answers):
            best = np.argsort(-row, kind="stable")[: self._top].tolist()
            label = None if labels is None else int(labels[index])
            self._labelled += label is not None
            self._right += label == best[0]
            seen = ", ".join(f"{_printable(self._names[each])} {row[each]:.1%}" for each in best)
            wrong = "" if label is None or label == best[0] else f" (is {_printable(self._names[label])})"
            top = [{"name": self._names[each], "probability": float(row[each])} for each in best]
            yield seen + wrong, {"label": None if label is None else self._names[label], "top": top}

    def summary(self) -> str:
        if not self._labelled:
            return ""
        return f"right: {self._right:,} of {self._labelled:,} ({self._right / self._labelled:.1%})"

    def totals(self) -> dict[str, Any]:
        return {"labelled": self._labelled, "right": self._right}


class ValueReader:
    """Reads the values of a regression, and how far they are from the targets."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._errors = RegressionErrors()

    def read(self, answers: FloatArray, labels: Labels | None) -> Iterator[tuple[str, dict[str, Any]]]:
        if labels is not None:
            self._errors.add(answers, labels)
        for index, row in enumerate(answers):
            targets = [None] * len(row) if labels is None else [float(target) for target in labels[index]]
            values = [
                {"name": name, "value": float(value), "target": target}
                for name, value, target in zip(self._names, row, targets, strict=True)
            ]
            yield ", ".join(map(_value_text, values)), {"values": values}

    def summary(self) -> str:
        if not self._errors.samples:
            return ""
        return f"error: {_errors_text(self._errors.rmse, self._errors.r_squared)} over {self._errors.samples:,} samples"

    def totals(self) -> dict[str, Any]:
        samples = self._errors.samples
        return {
            "labelled": samples,
            "rmse": self._errors.rmse if samples else None,
            "r_squared": self._errors.r_squared,
        }


def answer(model: Path, question: argparse.Namespace, *, extra: dict[str, Any] | None = None) -> None:
    """Print what a model says about files; `question` has the options of `add_question`.

    A JSON document has `extra` beside what the file says of the model.
    """
    predictor = Predictor(model)
    description = predictor.description
    reader: Reader = ValueReader(description.names)
    if description.task == "classes":
        reader = ClassReader(description.names, question.top)
    predictions = _predict(predictor, question.files, reader)
    if question.json:
        document = _document(description, list(predictions), reader)
        document["model"].update(extra or {})
        print(json.dumps(document))
    else:
        _print(model, predictor, predictions, reader)


def _predict(predictor: Predictor, files: Iterable[Path], reader: Reader) -> Iterator[Prediction]:
    for file in files:
        for batch in read_batches(file, predictor.description, predictor.sample):
            for index, (text, fields) in enumerate(reader.read(predictor.answers(batch.x), batch.labels)):
                sample = None if batch.first is None else batch.first + index
                yield Prediction(str(file), sample, batch.resized_from, text, fields)


def _print(model: Path, predictor: Predictor, predictions: Iterable[Prediction], reader: Reader) -> None:
    description = predictor.description
    run = _printable(description.run)
    print(f"{_printable(str(model))}: run {run}, round {description.round}, {_quality(description)}")
    size = "x".join(map(str, reversed(predictor.sample[1:])))
    for prediction in predictions:
        print(_line(prediction, size=size))
    if summary := reader.summary():
        print(summary)


def _quality(description: Description) -> str:
    """How well the model did in its run."""
    if description.task == "classes":
        return "accuracy unknown" if description.accuracy is None else f"accuracy {description.accuracy:.1%}"
    return _errors_text(description.rmse, description.r_squared)


def _errors_text(rmse: float | None, r_squared: float | None) -> str:
    return f"RMSE {_number(rmse)}, R2 {_number(r_squared)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _value_text(value: dict[str, Any]) -> str:
    target = "" if value["target"] is None else f" (is {_number(value['target'])})"
    return f"{_printable(value['name'])} {_number(value['value'])}{target}"


def _line(prediction: Prediction, *, size: str) -> str:
    place = "" if prediction.sample is None else f"[{prediction.sample}]"
    resized = ""
    if prediction.resized_from is not None:
        resized = " (resized from {}x{} to {})".format(*prediction.resized_from, size)
    return f"{_printable(prediction.file)}{place}{resized}: {prediction.text}"


def _document(description: Description, predictions: list[Prediction], reader: Reader) -> dict[str, Any]:
    quality: dict[str, float | None] = {"accuracy": description.accuracy}
    if description.task == "regression":
        quality = {"rmse": description.rmse, "r_squared": description.r_squared}
    return {
        "model": {"run": description.run, "round": description.round, **quality},
        "predictions": [
            {"file": each.file, "sample": each.sample, "resized_from": each.resized_from, **each.fields}
            for each in predictions
        ],
        **reader.totals(),
    }


def _printable(text: str) -> str:
    """A name made harmless to the terminal, whoever put it into the file."""
    return text if text.isprintable() else ascii(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def add_question(parser: Parser) -> None:
    """Add what both commands that predict take: the files, and how to print the answers."""
    parser.add_argument(
        "files",
        type=Path,
        metavar="FILE",
        nargs="+",
        help="an image (PPM, PGM; with Pillow also PNG, JPEG, BMP, WebP), or an .npz file with x_test, x or x_train; "
        "where it has y_test, y or y_train too, the share that is right is printed, or the error of a regression",
    )
    parser.add_argument(
        "--top", type=_positive, default=3, help="classes to name per sample (default: %(default)s); not for values"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
