"""The model in training: exported artifacts, the table of methods, pruning, and the step from w to theta."""
