"""Boards and their sensors: energy meters, found by the device through the entry-point group `sparsyedge.meters`."""
