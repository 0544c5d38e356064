"""`sparsyedge bench dropout`: accuracy when devices are lost in every round."""
