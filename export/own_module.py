"""A user's own module: found by a name, checked before anything is traced, frozen in part, started from weights."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sparsyedge.edge.errors import ConfigError
from sparsyedge.export.model_spec import ModelSpec

__all__ = ["check_module", "choose_prunable", "freeze", "load_module", "read_weights", "train_mode"]

_SAMPLES = 2
_MOST_NAMED = 3


def load_module(spec: ModelSpec, arguments: Mapping[str, Any]) -> nn.Module:
    """The module that `spec.model` names: `FILE.py:CALLABLE` or `package.module:CALLABLE`, called with `arguments`.

    A callable with a parameter `classes`, `outputs` or `input_shape` gets it from the data unless the user gave it.
    """
    place, _, name = spec.model.rpartition(":")
    source = _import(place, spec.model)
    make = getattr(source, name, None)
    if not callable(make):
        offered = [key for key, value in vars(source).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(
            f"--model {spec.model}: {place} has no callable {name!r}; it has {_some(offered) or 'none at all'}"
        )
    try:
        module = make(**{**_facts(make, spec), **arguments})
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"--model {spec.model} cannot be made with {dict(arguments) or 'no arguments'}: {type(error).__name__}: "
            f"{error}; pass arguments with --model-arg NAME=VALUE"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"--model {spec.model} gave {type(module).__name__}; it must give a torch.nn.Module")
    return module


def _facts(make: Callable[..., Any], spec: ModelSpec) -> dict[str, Any]:
    known = {"classes": spec.classes, "outputs": spec.outputs, "input_shape": spec.input_shape}
    try:
        wanted = inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return {}
    return {name: value for name, value in known.items() if name in wanted}


def _import(place: str, model: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError:
        raise
    except Exception as error:  # importing runs a user's code, which may raise anything
        raise ConfigError(
            f"--model {model}: {place} cannot be imported: {type(error).__name__}: {error}; name a file as "
            f"my_nets.py:MyNet, or a module that this Python can import"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"--model: there is no file {path}; write FILE.py:CALLABLE")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its neighbours are importable, as if it were run.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def check_module(module: nn.Module, spec: ModelSpec) -> None:
    """Raise ConfigError unless the module turns a batch of this data into one row of numbers per sample."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.dtype != torch.float32 and not name.endswith("num_batches_tracked") and tensor.is_floating_point():
            raise ConfigError(
                f"{spec.model}: parameter {name} is {tensor.dtype}; only float32 trains on devices: call .float()"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"{spec.model} has no parameter to train")
    logits = _try(module, spec)
    if isinstance(logits, tuple | list | dict):
        raise ConfigError(
            f"{spec.model}: forward returns a {type(logits).__name__} of {len(logits)}; it must return one tensor, "
            f"(batch, {spec.outputs}): wrap the module and pick the one to train"
        )
    shape = tuple(logits.shape)
    if shape != (_SAMPLES, spec.outputs):
        raise ConfigError(
            f"{spec.model}: {_SAMPLES} samples of shape {spec.input_shape} give an output of shape {shape}; expected "
            f"{(_SAMPLES, spec.outputs)}, a number per {'output' if spec.task == 'regression' else 'class'}"
        )
    logits.sum().backward()
    unused = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    module.zero_grad(set_to_none=True)
    if unused:
        raise ConfigError(
            f"{spec.model}: the output does not depend on {_some(unused)}; remove them, or set requires_grad to False"
        )


def _try(module: nn.Module, spec: ModelSpec) -> Any:
    """The output for a small batch; leaves running statistics as they were."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        return train_mode(module)(torch.zeros(_SAMPLES, *spec.input_shape))
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"{spec.model} cannot take a batch of shape {(_SAMPLES, *spec.input_shape)}: {type(error).__name__}: "
            f"{error}"
        ) from error
    finally:
        for name, buffer in module.named_buffers():
            buffer.data.copy_(before[name])


def train_mode(module: nn.Module) -> nn.Module:
    """The module in training mode, but for frozen BatchNorms: they keep their statistics, as they keep the rest."""
    module.train()
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.affine and not norm.weight.requires_grad:
            norm.eval()
    return module


def freeze(module: nn.Module, train: str, layers: Sequence[str]) -> None:
    """Let only some parameters train: `all`, `last:N` layers, or those whose names match a pattern.

    `layers` are the weights of the module's layers in their order. The last N layers begin at the weight of the first
    of them; whatever is defined after it trains, too.
    """
    names = [name for name, _ in module.named_parameters()]
    if train == "all":
        return
    if train.startswith("last:"):
        trained = set(_last(names, layers, train))
    else:
        trained = {name for name in names if _matches(name, train)}
        if not trained:
            raise ConfigError(f"--train {train} matches no parameter; there are {_some(names)}")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained and parameter.requires_grad)


def _last(names: Sequence[str], layers: Sequence[str], train: str) -> Iterable[str]:
    count = train.removeprefix("last:")
    if not count.isdigit() or not 1 <= int(count) <= len(layers):
        raise ConfigError(f"--train {train}: allowed are last:1 to last:{len(layers)}, one for each layer with weights")
    ordered = [name for name in names if name in layers]
    return names[names.index(ordered[-int(count)]) :]


def choose_prunable(
    trainable: Sequence[str], layers: Collection[str], pattern: str | None, *, shared: Collection[str] = ()
) -> tuple[str, ...]:
    """The prunable parameters in order: the layers' weights, or what the pattern names; at least one.

    Weights that several layers share are not pruned.
    """
    if pattern is None:
        found = tuple(name for name in trainable if name in layers)
        if not found:
            raise ConfigError(
                "the model has no convolution or linear layer that trains, so there is nothing to prune; name the "
                "parameters to prune with --prunable PATTERN"
            )
        return found
    found = tuple(name for name in trainable if _matches(name, pattern))
    if not found:
        raise ConfigError(f"--prunable {pattern} matches no trainable parameter; there are {_some(trainable)}")
    if common := [name for name in found if name in shared]:
        raise ConfigError(
            f"--prunable {pattern} matches {_some(common)}, which more than one layer uses; only a layer's own weight "
            f"can be pruned: name others"
        )
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether any of the comma-separated patterns fits, as in a shell."""
    return any(fnmatch.fnmatchcase(name, each.strip()) for each in pattern.split(","))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a state dict that torch saved; never runs code from the file."""
    if not path.is_file():
        raise ConfigError(f"--init: there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ConfigError(f"--init {path} needs the package safetensors: pip install safetensors") from error
    except Exception as error:  # both readers raise many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"--init {path} cannot be read ({reason[:200]}); save it with torch.save(model.state_dict(), path), or as "
            f".safetensors"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ConfigError(f"--init {path} holds no state dict; save it with torch.save(model.state_dict(), path)")
    return found


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return ", ".join(listed[:_MOST_NAMED]) + more
