"""`sparsyedge bench arm`: a training step on boards that are not at hand, modelled."""
