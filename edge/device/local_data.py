"""A device's samples: looked at before every round, split to train and to evaluate on, and fitted to the model."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from msgspec import UNSET, UnsetType

from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.data.form import Form
from sparsyedge.edge.data.holdout import held_out
from sparsyedge.edge.data.source import DataSource, Found, Part
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.protocol.messages import DataNote, RoundTask
from sparsyedge.edge.text import one_line

__all__ = ["LocalData", "RoundData"]

log = logging.getLogger(__name__)

OWNER = "this device's data"
NO_SAMPLES = "no samples"
"""The digest of no samples."""


@dataclass(frozen=True)
class RoundData:
    """What a device uses in one round, with the model's labels."""

    train: Samples
    evaluation: Samples | None
    """None if the device has nothing to evaluate on."""
    held_out: bool = False
    """Whether the evaluation samples are a share of the device's own data, rather than its test part."""


class LocalData:
    """The device's samples; they change only in `look`."""

    def __init__(
        self,
        samples: Samples | None,
        class_names: tuple[str, ...] = (),
        *,
        source: DataSource | None = None,
        min_samples: int = 1,
        tells_classes: bool = True,
    ) -> None:
        """`class_names` names the classes behind the labels; empty if the data does not name them."""
        self.tells_classes = tells_classes
        """Whether a run that asks may know which classes there are."""
        self._source = source
        self._min_samples = min_samples
        self._note = DataNote()
        self._fitted: RoundData | None = None
        self._fitted_to: tuple[str, float, int, bool] | None = None
        self._put(Found(train=None if samples is None else Part(samples, class_names)))

    @classmethod
    def opened(cls, source: DataSource, *, min_samples: int = 1, tells_classes: bool = True) -> LocalData:
        """Read a source for the first time; raises DataError if waiting would not mend what is wrong with it."""
        data = cls(None, source=source, min_samples=min_samples, tells_classes=tells_classes)
        found = source.look()
        assert found is not None, "the first look finds what there is"
        data._put(found)
        # Nothing of this is news: the device has only just started.
        data._note = DataNote(broken=found.broken, trouble=one_line(found.trouble))
        if found.trouble:
            log.warning("data: %s", data._describe(found))
        return data

    def __len__(self) -> int:
        return 0 if self._train is None else len(self._train.samples)

    @property
    def part(self) -> Part | None:
        """All samples, not only those of a round; None if there are none yet."""
        return self._train

    @property
    def shortage(self) -> str:
        """Why the device has too little data to take part; empty if it has enough."""
        if len(self) >= self._min_samples:
            return ""
        why = f": {self._found.trouble}" if self._found.trouble else ""
        return f"too little data, {len(self)} of at least {self._min_samples} samples{why}"

    @property
    def note(self) -> DataNote | UnsetType:
        """What has changed since the last report, and what is broken now; UNSET if nothing is worth a word."""
        return UNSET if self._note == DataNote() else self._note

    def reported(self) -> None:
        """Count changes anew: the last ones are in a report."""
        self._note = DataNote(broken=self._note.broken, trouble=self._note.trouble)

    def look(self) -> bool:
        """Look for changes, between two rounds; returns whether the samples are others than before."""
        found = None if self._source is None else self._source.look()
        if found is None:
            return False
        before, is_new = self.digest, found.has_changes
        if is_new or found.trouble != self._found.trouble or found.broken != self._found.broken:
            log.log(logging.WARNING if found.trouble else logging.INFO, "data: %s", self._describe(found))
        note = self._note
        self._note = DataNote(
            added=note.added + found.added,
            changed=note.changed + found.changed,
            removed=note.removed + found.removed,
            broken=found.broken,
            trouble=one_line(found.trouble),
        )
        self._put(found)
        return self.digest != before

    def for_round(self, task: RoundTask, form: Form, *, device_id: str) -> RoundData:
        """Split and relabel the samples as the task asks, and keep that until data or settings change.

        Raises DataError if the samples do not suit the model.
        """
        evaluates = bool(task.evaluate) or task.evaluation is not UNSET
        key = (task.manifest.sha256, task.holdout or 0.0, task.seed, evaluates)
        if self._fitted is None or self._fitted_to != key:
            self._fitted = self._fit(
                form, task.holdout or 0.0, seed=task.seed, device_id=device_id, evaluates=evaluates
            )
            self._fitted_to = key
        return self._fitted

    def _fit(self, form: Form, holdout: float, *, seed: int, device_id: str, evaluates: bool) -> RoundData:
        if self._train is None:
            raise DataError(self.shortage or "this device has no samples")
        train = _fitted(self._train, form, OWNER)
        if not evaluates and not holdout:
            return RoundData(train, None)
        test = self._test_part(form)
        if test is not None or self._found.has_test or not holdout:
            return RoundData(train, test)
        out = held_out(train, holdout, seed=seed, device_id=device_id)
        if out.all():
            raise DataError(
                f"all {len(train)} samples of this device are held out with `holdout` = {holdout:g}, and none is left "
                "to train on; give it more samples"
            )
        if not out.any():
            log.info("none of %d samples is held out with `holdout` = %g: nothing to evaluate on", len(train), holdout)
            return RoundData(train, None)
        return RoundData(train.take(np.flatnonzero(~out)), train.take(np.flatnonzero(out)), held_out=True)

    def _test_part(self, form: Form) -> Samples | None:
        """The device's own test part, relabelled; a broken one must not keep the device from training.

        While it cannot be read, the device holds out nothing instead: a sample never changes sides for that.
        """
        try:
            test = self._found.test()
            return None if test is None else _fitted(test, form, "this device's test part")
        except (DataError, OSError) as error:
            log.warning("not evaluating on the test part of this device's data: %s", error)
            return None

    def _put(self, found: Found) -> None:
        self._train = found.train
        self._found = replace(found, train=None)
        self.digest = NO_SAMPLES if found.train is None else found.train.samples.digest()
        self._fitted = self._fitted_to = None

    def _describe(self, found: Found) -> str:
        """A look in one sentence."""
        changes = {"new": found.added, "changed": found.changed, "removed": found.removed, "broken": found.broken}
        counts = ", ".join(f"{count} {what}" for what, count in changes.items() if count)
        total = 0 if found.train is None else len(found.train.samples)
        return one_line("; ".join(part for part in (counts, f"{total} samples in all", found.trouble) if part))


def _fitted(part: Part, form: Form, owner: str) -> Samples:
    return fit_to_model(part.samples, part.names, form, owner=owner)
