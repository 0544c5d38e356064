"""The inputs of delivered models, and how their graphs convert them to what training saw.

Uses the ops of Samples.batch in the same order: an image gives the same bits in the graph as in an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sparsyedge.edge.data.form import SampleType
from sparsyedge.edge.inference.onnx_format import FLOAT, INT16, UINT8, node, scalar, value_info

__all__ = ["FLOAT_MODEL_NAME", "MODEL_NAME", "DataType", "Layout", "Preprocessing", "preprocessings"]

MODEL_NAME = "model.onnx"
FLOAT_MODEL_NAME = "model_float.onnx"
PREFIX = "sparsyedge.preprocessing"
BATCH = "batch"

Layout = Literal["NHWC", "NCHW", "NF", "NCL", "NCDHW"]
CHANNELS_FIRST: dict[int, Layout] = {1: "NF", 2: "NCL", 3: "NCHW", 4: "NCDHW"}
"""The layout of a batch as training has it, by the number of a sample's axes (edge/data/dataset.py names them)."""
DataType = Literal["uint8", "int16", "float32"]
ELEMENTS: dict[DataType, int] = {"uint8": UINT8, "int16": INT16, "float32": FLOAT}

Step = tuple[str, float | dict[str, int | tuple[int, ...]]]
"""An op with its number, or with its attributes."""
TO_NCHW: Step = ("Transpose", {"perm": (0, 3, 1, 2)})
TO_FLOAT: Step = ("Cast", {"to": FLOAT})
CENTRED: tuple[Step, ...] = (("Sub", 0.5), ("Div", 0.5))


@dataclass(frozen=True)
class Preprocessing:
    """One kind of input for a delivered model."""

    input: str
    dtype: DataType
    layout: Layout
    scaling: str
    """For people: what to pass in, and how the graph scales it."""
    steps: tuple[Step, ...]

    def shape(self, sample: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a sample in this layout; `sample` has its channels first."""
        return (*sample[1:], sample[0]) if self.layout == "NHWC" else sample

    def input_info(self, sample: tuple[int, ...]) -> bytes:
        """The ValueInfoProto of the input."""
        return value_info(self.input, (BATCH, *self.shape(sample)), ELEMENTS[self.dtype])

    def nodes(self, output: str) -> Iterator[bytes]:
        """Nodes from the input to `output`."""
        source = self.input
        for index, (op, operand) in enumerate(self.steps):
            target = output if index == len(self.steps) - 1 else f"{PREFIX}.{index}"
            if isinstance(operand, dict):
                yield node(op, [source], target, **operand)
            else:
                yield node(op, [source, _constant(operand)], target)
            source = target

    def constants(self) -> dict[str, bytes]:
        """The initializers that the nodes read, by name."""
        numbers = [operand for _, operand in self.steps if not isinstance(operand, dict)]
        return {_constant(number): scalar(_constant(number), number) for number in numbers}

    @property
    def names(self) -> frozenset[str]:
        """Every name that the nodes add to a graph."""
        return frozenset({self.input, *self.constants(), *(f"{PREFIX}.{index}" for index in range(len(self.steps)))})


def _constant(number: float) -> str:
    return f"{PREFIX}.{number:g}"


def preprocessings(sample_type: SampleType, sample: tuple[int, ...]) -> dict[str, Preprocessing]:
    """The files that a run on samples of such type and shape delivers, by name, and the input of each."""
    return {
        name: replace(each, layout=CHANNELS_FIRST[len(sample)]) if each.layout == "NCHW" else each
        for name, each in _DELIVERED[sample_type].items()
    }


_DELIVERED: dict[SampleType, dict[str, Preprocessing]] = {
    "uint8": {
        MODEL_NAME: Preprocessing(
            "images",
            "uint8",
            "NHWC",
            "give pixels of 0..255 as they are; the graph makes (v / 255 - 0.5) / 0.5 of them",
            (TO_NCHW, TO_FLOAT, ("Div", 255.0), *CENTRED),
        ),
        FLOAT_MODEL_NAME: Preprocessing(
            "images",
            "float32",
            "NCHW",
            "give pixels divided by 255, 0..1; the graph makes (v - 0.5) / 0.5 of them",
            CENTRED,
        ),
    },
    "int16": {
        MODEL_NAME: Preprocessing(
            "sound",
            "int16",
            "NCHW",
            "give sound as it is stored, -32768..32767; the graph divides it by 32768",
            (TO_FLOAT, ("Div", 32768.0)),
        )
    },
    "float32": {
        MODEL_NAME: Preprocessing(
            "samples",
            "float32",
            "NCHW",
            "give numbers scaled as those that the model was trained on; the graph takes them as they are",
            (("Identity", {}),),
        )
    },
}
