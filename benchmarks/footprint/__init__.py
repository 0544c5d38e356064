"""`sparsyedge bench footprint`: a device's install, on disk and in memory."""
