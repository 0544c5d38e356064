"""`sparsyedge bench meter`: what this board draws under known loads, for boards without a meter."""
