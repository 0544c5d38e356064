"""The model that is trained: exported artifacts, the table of methods, pruning, and theta from w."""
