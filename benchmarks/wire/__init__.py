"""`sparsyedge bench wire`: a model on the wire, codec by codec."""
