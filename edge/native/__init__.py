"""The op library and the wire codec: where they are. Their sources are the C++ files beside this one."""

import os
from importlib.resources import files
from pathlib import Path

from sparsyedge.edge.errors import ArtifactError

__all__ = ["ABI_VERSION", "OP_DOMAIN", "codec_path", "library_path"]

ABI_VERSION: int = 6
"""Goes into every manifest; grows when an op changes its inputs, its outputs or what it computes."""

OP_DOMAIN = "sparsyedge"
"""The ONNX domain of all our ops."""

LIBRARY_NAME = "libsparsyedge_ops.so"
CODEC_NAME = "libsparsyedge_codec.so"


def library_path() -> Path:
    """The absolute path of the op library, for `SessionOptions.register_custom_ops_library`.

    $SPARSYEDGE_OP_LIBRARY names another build of it: `make check-native` tests one with sanitizers in it.
    """
    override = os.environ.get("SPARSYEDGE_OP_LIBRARY")
    return Path(override).resolve() if override else _installed(LIBRARY_NAME, "op library")


def codec_path() -> Path:
    """The absolute path of the wire codec, which sparsyedge.edge.wire.native_codec loads."""
    return _installed(CODEC_NAME, "wire codec")


def _installed(name: str, what: str) -> Path:
    # Wheels have the library beside this file. An editable install has it elsewhere, and only the import system knows.
    library = files(__name__).joinpath(name)
    if not library.is_file():
        raise ArtifactError(
            f"the {what} {name} is not part of this installation of sparsyedge; "
            "run `make setup` to build and install it"
        )
    return Path(str(library)).resolve()
