"""Why torch cannot export a module, in a sentence: where in the module, which op, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn
from torch.export import ExportedProgram

__all__ = ["explain_trace", "explain_translation", "op_places"]

_CALL = re.compile(r"torch\.ops\.([\w.]+)\(")
_BRANCHES = ("data-dependent", "Dynamic control flow", "dynamic control flow")


def op_places(traced: ExportedProgram) -> dict[str, str]:
    """For every op of a traced program, the path of the first module that uses it; empty for the outermost."""
    places: dict[str, str] = {}
    for node in traced.graph.nodes:
        if node.op == "call_function" and (stack := node.meta.get("nn_module_stack")):
            path, _ = list(stack.values())[-1]
            places.setdefault(str(node.target), path.removeprefix("model").removeprefix("."))
    return places


def explain_trace(error: Exception, model: nn.Module) -> str:
    """The sentence for a module that torch cannot trace or differentiate."""
    text = str(error).strip()
    reason = text.splitlines()[0][:300] if text else type(error).__name__
    if any(mark in reason for mark in _BRANCHES):
        reason = f"control flow depends on data ({reason})"
        remedy = "compute both branches and choose with torch.where, or loop a fixed number of times"
    else:
        remedy = "write its forward with ops that torch.export knows, and without control flow that depends on data"
    return f"torch cannot export {type(model).__name__} as a graph{_place(error, model)}: {reason}; {remedy}"


def explain_translation(error: Exception, places: Mapping[str, str]) -> str:
    """The sentence for an op that has no form in ONNX; `places` says which modules use which ops."""
    node = _untranslated(error)
    if node is None:
        lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        return f"torch cannot write the network as ONNX: {lines[0][:300]}; change the module's forward"
    # An op may come from another that torch took apart; the trace of its call ends with the one that the module has.
    called = _CALL.findall(node.meta.get("stack_trace") or "")
    op = called[-1] if called else str(node.target)
    where = ""
    if op in places:
        where = f" in module {places[op]}" if places[op] else " in the outermost module"
    return (
        f"torch has no ONNX form of the op {op}{where}, which the network or its gradient needs; replace it in the "
        f"module's forward by simpler ops"
    )


def _place(error: BaseException, model: nn.Module) -> str:
    """Where in the module a fault arose, as ` in module PATH (FILE:LINE)`."""
    paths = {id(module): name for name, module in model.named_modules()}
    place = ""
    for frame, line in _frames(error):
        module = frame.f_locals.get("self")
        if frame.f_code.co_name == "forward" and id(module) in paths:
            path = paths[id(module)]
            file = Path(frame.f_code.co_filename).name
            place = f", {'in module ' + path if path else 'in its forward'} ({file}:{line})"
    return place


def _untranslated(error: BaseException) -> Any:
    """The node that torch's exporter was at when it failed, if it was at one; the error itself has it as text only."""
    chain: BaseException | None = error
    while chain is not None:
        for frame, _ in _frames(chain):
            node = frame.f_locals.get("node")
            if frame.f_code.co_name == "_translate_fx_graph" and node is not None:
                return node
        chain = chain.__cause__
    return None


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames of a traceback with their lines, innermost last."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
