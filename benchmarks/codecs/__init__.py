"""`sparsyedge bench codecs`: how much accuracy each codec costs."""
