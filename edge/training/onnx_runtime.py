"""ONNX Runtime with our op library loaded: the only file that imports onnxruntime.

`RUNTIME` is its name and version, `training_api` the training API or None; to read either imports onnxruntime.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.native import library_path
from sparsyedge.edge.training.session import Runtime

__all__ = ["graph_options", "open_graph", "pick_runtime", "session_options"]


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Hide torch from imports, unless it is already loaded.

    onnxruntime-training imports torch if installed, for parts that we do not use. That costs seconds and hundreds of
    megabytes on every device of a demo.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _import_training_api() -> Any:
    """The training API, or None if this onnxruntime has none.

    Imports the submodule without running its package's __init__, which fails without torch.
    """
    spec = importlib.util.find_spec("onnxruntime.training")
    if spec is None:
        return None
    sys.modules.setdefault("onnxruntime.training", importlib.util.module_from_spec(spec))
    return importlib.import_module("onnxruntime.training.api")


@cache
def _onnxruntime() -> Any:
    """The package, imported when it is first needed: a device that waits for a round needs none of its memory."""
    with _torch_hidden():
        import onnxruntime

        return onnxruntime


@cache
def _training_api() -> Any:
    _onnxruntime()
    with _torch_hidden():
        return _import_training_api()


def _has_training_api() -> bool:
    """Whether the installed onnxruntime has a training API; imports nothing."""
    spec = importlib.util.find_spec("onnxruntime")
    return spec is not None and any(
        (Path(folder) / "training" / "api").is_dir() for folder in spec.submodule_search_locations or ()
    )


def __getattr__(name: str) -> Any:
    if name == "RUNTIME":
        return f"onnxruntime {_onnxruntime().__version__}"
    if name == "training_api":
        return _training_api()
    raise AttributeError(name)


def pick_runtime(forced: Runtime | None = None) -> Runtime:
    """The runtime to train with: the installed one, or the forced one; raises ConfigError if that is not installed."""
    has_api = _has_training_api()
    if forced == "training" and not has_api:
        raise ConfigError(
            "--runtime training needs onnxruntime-training 1.19.2 (x86-64 Linux, Python 3.11), here is "
            f"{__getattr__('RUNTIME')}; leave the option out"
        )
    return forced or ("training" if has_api else "stock")


def session_options(threads: int) -> Any:
    """Options with our ops registered, `threads` threads per op, and no spinning."""
    options = _onnxruntime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A spinning thread burns a core that another process, or the battery, could use.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library_path()))
    return options


def graph_options(threads: int, *, arena: bool = True) -> Any:
    """Options for a graph from our exporter.

    With an arena, the session keeps the memory of its largest run, which makes the next run faster.
    """
    options = session_options(threads)
    options.enable_cpu_mem_arena = arena
    # A pattern keeps the memory of the first run, which found it, beside that of all others.
    options.enable_mem_pattern = False
    # Run nodes in file order, which frees every tensor as early as possible: a sparse step then takes 141 MB, against
    # 193 MB in onnxruntime's own order.
    options.execution_order = _onnxruntime().ExecutionOrder.PRIORITY_BASED
    return options


def open_graph(path: Path, *, threads: int, arena: bool = True, content: bytes | None = None) -> Any:
    """A plain session over a graph file; raises ArtifactError if this runtime cannot load it.

    `content` is the graph to load, if it was made from the file's.
    """
    options = graph_options(threads, arena=arena)
    try:
        return _onnxruntime().InferenceSession(content or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ArtifactError(f"{__getattr__('RUNTIME')} cannot load {path}: {error}") from error
