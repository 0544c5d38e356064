"""A data set of another package, which may say that it has new samples."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from sparsyedge.edge.data.checks import check
from sparsyedge.edge.data.dataset import Dataset
from sparsyedge.edge.data.source import Found, Part, compared
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.text import one_line

__all__ = ["PluginSource", "load_plugin"]

NEWS = "new_samples"
"""The method by which a data set says how many samples are new since it was last read; few have it."""


def load_plugin(plugin: metadata.EntryPoint, data_dir: Path | None) -> Dataset:
    """A data set from another package: its entry point names a function from the data folder (or None) to a Dataset."""
    return _call(plugin, _open(plugin), data_dir)


def _open(plugin: metadata.EntryPoint) -> Any:
    try:
        return plugin.load()
    except Exception as error:  # foreign code may raise anything
        raise _failure(plugin, error) from error


def _call(plugin: metadata.EntryPoint, read: Any, data_dir: Path | None) -> Dataset:
    try:
        dataset = read(data_dir)
    except DataError:
        raise
    except Exception as error:
        raise _failure(plugin, error) from error
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"data set {plugin.name} of entry point {plugin.value} gave {type(dataset).__name__}; "
            "it must give a sparsyedge.edge.data.Dataset"
        )
    return dataset


def _failure(plugin: metadata.EntryPoint, error: Exception) -> DataError:
    return DataError(f"data set {plugin.name} of entry point {plugin.value} failed: {one_line(repr(error))}")


class PluginSource:
    """Reads the data set once, and again whenever it says that it has new samples."""

    def __init__(self, plugin: metadata.EntryPoint, data_dir: Path | None) -> None:
        self._plugin = plugin
        self._data_dir = data_dir
        self._read = _open(plugin)
        self._train: Part | None = None
        self._test: Part | None = None
        self._told = ""

    def look(self) -> Found | None:
        """Ask for news, and read everything if there are any."""
        try:
            if self._train is not None and not self._count_news():
                return None
            dataset = _call(self._plugin, self._read, self._data_dir)
            check(replace(dataset, test=dataset.train.none()), train_only=True)
        except (DataError, OSError) as error:
            if self._train is None:
                raise
            return self._kept(str(error))
        before, self._train, self._told = self._train, Part(dataset.train, dataset.names), ""
        self._test = Part(dataset.test, dataset.names) if len(dataset.test) else None
        return compared(before, Found(train=self._train, test=lambda: self._test, has_test=self._test is not None))

    def _count_news(self) -> int:
        """How many samples are new; 0 for a data set that does not say, which stays as it is."""
        count = getattr(self._read, NEWS, None)
        if count is None:
            return 0
        try:
            return int(count(self._data_dir))
        except Exception as error:
            raise _failure(self._plugin, error) from error

    def _kept(self, trouble: str) -> Found | None:
        """What was read before, once for each reason."""
        if trouble == self._told:
            return None
        self._told = trouble
        return Found(
            train=self._train,
            test=lambda: self._test,
            has_test=self._test is not None,
            trouble=f"{trouble}; the samples from before stay",
        )
