"""Masks that move: how the share falls, how it is counted, and what contradicts it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import METHODS, make_method
from sparsyedge.edge.model.regrowth import regrow_counts
from sparsyedge.edge.model.training import check_votes, make_training


def test_the_share_falls_from_time_to_time_to_a_quarter() -> None:
    method = make_method("sparsyfed", regrow_every=10)
    shares = [method.regrown_share(number) for number in range(1, 101)]
    assert [number for number, share in enumerate(shares, 1) if share] == list(range(10, 101, 10))
    assert shares[9::10][:3] == [Fraction(1, 5), Fraction(4, 25), Fraction(16, 125)]
    assert shares[99] == method.regrown_share(10_000) == Fraction(1, 20)


def test_without_the_option_nothing_grows() -> None:
    method = make_method("sparsyfed")
    assert not any(method.regrown_share(number) for number in range(1, 50))
    assert method.most_regrowth == 0


def test_layers_exchange_a_share_of_what_they_hold_and_together_of_the_budget() -> None:
    assert regrow_counts({"a": 100, "b": 9, "c": 0}, Fraction(1, 5), 200) == {"a": 20, "b": 1, "c": 0}
    assert regrow_counts({"a": 300, "b": 100}, Fraction(1, 5), 200) == {"a": 30, "b": 10}


def test_the_default_share_is_not_in_the_manifest() -> None:
    assert make_method("sparsyfed", regrow_every=10, regrow_share=0.2) == make_method("sparsyfed", regrow_every=10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"regrow_every": 1}, "key `regrow_every` has value 1: .*at least 2.*round 1 makes the mask"),
        ({"regrow_every": 10, "regrow_share": 0.9}, "key `regrow_share` has value 0.9: .*at most 0.5"),
        ({"regrow_share": 0.1}, "`method.regrow_share` has value 0.1: .*`method.regrow_every`"),
        ({"regrow_every": 10, "uplink": "delta"}, "`method.regrow_every` has value 10: with `method.uplink` = 'delta'"),
        ({"regrow_every": 10, "beta": 1.0}, "`method.regrow_every` has value 10: with `method.beta` = 1 .*themselves"),
        ({"regrow_every": 10, "aggregation": "nonzero-mean"}, "`method.regrow_every` has value 10: .*one device"),
        ({"regrow_every": 10, "sparsities": [0.9], "shares": [1]}, "`method.regrow_every` has value 10: .*sparsities"),
    ],
)
def test_what_contradicts_a_moving_mask_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_method("sparsyfed", **options)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"sparsyfed", "sparsyfed-no-act"}))
def test_methods_with_a_fixed_mask_or_with_zeros_that_grow_have_no_such_option(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`method.regrow_every` has value 10: method {name} has no such option"):
        make_method(name, regrow_every=10)


@pytest.mark.parametrize("training", [{"optimizer": "momentum"}, {"clip_norm": 1.0}])
def test_votes_for_zeros_need_steps_of_plain_sgd(training: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"with `method\.regrow_every` = 10 devices read gradients"):
        check_votes(make_method("sparsyfed", regrow_every=10), make_training(**training))
