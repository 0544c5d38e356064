"""The step of any torch module, as plain ONNX ops and ours: for every net that the fused layout does not understand."""
