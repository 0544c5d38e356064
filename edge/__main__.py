"""`python -m sparsyedge.edge` is `sparsyedge edge`."""

import sys

from sparsyedge.edge.cli import main

sys.exit(main(["edge", *sys.argv[1:]]))
