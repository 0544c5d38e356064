"""From a torch model to ONNX training artifacts with a manifest, checked against torch."""
