"""`sparsyedge bench runtime`: a step in any onnxruntime against onnxruntime-training's API."""
