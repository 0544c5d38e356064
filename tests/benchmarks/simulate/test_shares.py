"""What a simulation knows of its devices' data."""

from __future__ import annotations

import math

import numpy as np

from sparsyedge.benchmarks.simulate.shares import accuracy_by_device
from sparsyedge.coordinator.record.records import Evaluation


def test_a_device_s_accuracy_follows_its_mix_of_classes() -> None:
    mixes = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    evaluation = Evaluation(0.6, 1.0, by_class=(0.8, 0.4, math.nan))
    # The test part lacks class 2: it counts for nobody, and a device with nothing else has no accuracy.
    np.testing.assert_allclose(accuracy_by_device(evaluation, mixes).by_device, [0.8, 0.6, 0.8])
