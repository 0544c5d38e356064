"""Boards and their sensors; devices find the energy meters through the entry-point group `sparsyedge.meters`."""
