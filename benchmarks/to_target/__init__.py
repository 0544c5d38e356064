"""`sparsyedge bench to-target`: rounds, seconds, joules and megabytes until a target accuracy is held, by method."""
