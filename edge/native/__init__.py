"""Finds the op library and the wire codec, which are built from the C++ files in this folder."""

import os
from importlib.resources import files
from pathlib import Path

from sparsyedge.edge.errors import ArtifactError

__all__ = ["ABI_VERSION", "OP_DOMAIN", "codec_path", "library_path"]

ABI_VERSION: int = 7
"""In every manifest. Raise it when an op's inputs, outputs or results change."""

OP_DOMAIN = "sparsyedge"
"""The ONNX domain of all our ops."""

LIBRARY_NAME = "libsparsyedge_ops.so"
CODEC_NAME = "libsparsyedge_codec.so"


def library_path() -> Path:
    """The absolute path of the op library, for `SessionOptions.register_custom_ops_library`.

    $SPARSYEDGE_OP_LIBRARY names another build; `make check-native` uses it to test one with sanitizers.
    """
    override = os.environ.get("SPARSYEDGE_OP_LIBRARY")
    return Path(override).resolve() if override else _installed(LIBRARY_NAME, "op library")


def codec_path() -> Path:
    """The absolute path of the wire codec, which sparsyedge.edge.wire.native_codec loads."""
    return _installed(CODEC_NAME, "wire codec")


def _installed(name: str, what: str) -> Path:
    # Wheels have the library beside this file; in an editable install only the import system knows where it is.
    library = files(__name__).joinpath(name)
    if not library.is_file():
        raise ArtifactError(
            f"the {what} {name} is not part of this installation of sparsyedge; "
            "run `make setup` to build and install it"
        )
    return Path(str(library)).resolve()
