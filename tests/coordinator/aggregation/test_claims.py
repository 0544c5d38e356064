"""How much a claimed number of samples counts."""

from __future__ import annotations

import re

import pytest

from sparsyedge.coordinator.aggregation.claims import weigh
from sparsyedge.coordinator.aggregation_config import AggregationConfig, check_aggregation
from sparsyedge.edge.config import read_section
from sparsyedge.edge.errors import ConfigError

BILLION = 10**9


def test_a_claim_within_twice_the_median_counts_as_it_is() -> None:
    claims = {"a": 100, "b": 150, "c": 200, "d": 90}
    assert weigh(claims, AggregationConfig()) == claims


def test_whoever_claims_a_billion_counts_for_two() -> None:
    assert weigh({"a": 100, "b": 120, "c": 110, "d": BILLION}, AggregationConfig())["d"] == 220


def test_a_liar_among_two_devices_does_not_raise_the_median() -> None:
    assert weigh({"a": 100, "b": BILLION}, AggregationConfig()) == {"a": 100, "b": 200}


def test_a_device_never_weighs_more_than_the_operator_declared() -> None:
    declared = AggregationConfig(samples={"a": 60, "b": 1000})
    assert weigh({"a": 100, "b": 120, "c": 110}, declared) == {"a": 60, "b": 120, "c": 110}


def test_devices_can_count_the_same() -> None:
    assert weigh({"a": 100, "b": BILLION}, AggregationConfig(weights="equal")) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"rule": "mode"}, "key `rule` has value 'mode'"),
        ({"trim": 0.5}, "at least 0 and less than 0.5"),
        ({"clip": 0.0}, "at least 0.1 and at most 1000"),
        ({"weight": "equal"}, "did you mean `weights`"),
    ],
    ids=["rule", "trim", "clip", "unknown"],
)
def test_what_is_not_allowed_is_refused_with_the_key(content: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_section(content, AggregationConfig)


def test_krum_needs_a_cohort_for_the_hostile_devices_that_it_is_to_bear() -> None:
    check_aggregation(AggregationConfig(rule="krum", byzantine=3), cohort_size=9)
    with pytest.raises(ConfigError, match=r"needs 9 updates.*`cohort_size` is 8; allowed are 0 to 2"):
        check_aggregation(AggregationConfig(rule="krum", byzantine=3), cohort_size=8)


@pytest.mark.parametrize(
    ("device", "samples", "sentence"), [("pi-07", 0, "samples.pi-07` has value 0"), ("a b", 9, "'a b'")]
)
def test_samples_are_declared_for_devices_by_their_ids(device: str, samples: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check_aggregation(AggregationConfig(samples={device: samples}), cohort_size=3)
