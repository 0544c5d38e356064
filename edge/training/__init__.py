"""Local training in ONNX Runtime, over all weights or over the non-zero ones alone."""
