"""`sparsyedge bench device`: the cost of training on this board, dense and sparse."""
