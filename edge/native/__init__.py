"""The custom-op library: where it is, which version it is. Its sources are the C++ files beside this one."""

import os
from importlib.resources import files
from pathlib import Path

from sparsyedge.edge.errors import ArtifactError

__all__ = ["ABI_VERSION", "OP_DOMAIN", "library_path"]

ABI_VERSION: int = 2
"""Goes into every manifest; grows when an op changes its inputs, its outputs or what it computes."""

OP_DOMAIN = "sparsyedge"
"""The ONNX domain of all our ops."""

LIBRARY_NAME = "libsparsyedge_ops.so"


def library_path() -> Path:
    """The absolute path of the shared object, for `SessionOptions.register_custom_ops_library`.

    $SPARSYEDGE_OP_LIBRARY names another build of it: `make check-native` tests one with sanitizers in it.
    """
    override = os.environ.get("SPARSYEDGE_OP_LIBRARY")
    if override:
        return Path(override).resolve()
    # Wheels have the library beside this file. An editable install has it elsewhere, and only the import system knows.
    library = files(__name__).joinpath(LIBRARY_NAME)
    if not library.is_file():
        raise ArtifactError(
            f"the op library {LIBRARY_NAME} is not part of this installation of sparsyedge; "
            "run `make setup` to build and install it"
        )
    return Path(str(library)).resolve()
