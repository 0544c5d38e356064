"""Silences torch's exporters, which warn about their own internals and print graphs that they gave up."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import torch

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no log lines below an error and no graphs on the terminal during the block."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    # The tracing exporter switches this log on by itself, so there is no setting to leave it off.
    log = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *parts: None
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._jit_onnx_log = log
        logging.disable(disabled)
