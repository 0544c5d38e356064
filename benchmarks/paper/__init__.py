"""The experiments of the paper, one entry per table or figure, on the runtime that devices use."""
