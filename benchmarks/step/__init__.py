"""`sparsyedge bench step`: our training step against the same step in other libraries."""
