"""Runs graphs in another process, for what is fixed per process: `python case_runner.py LIBRARY FOLDER`.

Feeds every <case>.onnx in FOLDER with the arrays of <case>.npz, writes the outputs to <case>.out.npz and prints the
runtime's version.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def run(library: str, model: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    with np.load(model.with_suffix(".npz")) as arrays:
        outputs = session.run(None, dict(arrays))
    names = [port.name for port in session.get_outputs()]
    np.savez(model.with_suffix(".out.npz"), **dict(zip(names, outputs, strict=True)))


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[2]).glob("*.onnx")):
        run(sys.argv[1], path)
    print(onnxruntime.__version__)
