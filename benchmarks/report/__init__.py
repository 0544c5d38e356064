"""`sparsyedge report`: the results of one or several runs as a page with plots."""
