"""`sparsyedge bench device`: what training costs this board, dense and sparse."""
