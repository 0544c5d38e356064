"""`sparsyedge bench step`: one training step of ours against the same step of others."""
