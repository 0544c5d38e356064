"""Runs in the interpreter of the stock onnxruntime: `python stock_runner.py LIBRARY FOLDER`.

For every <case>.onnx in FOLDER, feeds the arrays of <case>.npz in order and writes the output to <case>.npy. The last
line that it prints is the runtime's version.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def run(library: str, model: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    with np.load(model.with_suffix(".npz")) as arrays:
        feeds = {port.name: arrays[f"arr_{i}"] for i, port in enumerate(session.get_inputs())}
    (output,) = session.run(None, feeds)
    np.save(model.with_suffix(".npy"), output)


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[2]).glob("*.onnx")):
        run(sys.argv[1], path)
    print(onnxruntime.__version__)
