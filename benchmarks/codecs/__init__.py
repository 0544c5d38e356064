"""`sparsyedge bench codecs`: what each codec costs in accuracy."""
