"""The table of methods: what can be asked for, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sparsyedge.edge.cli import main
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import METHODS, Method, make_method


@pytest.mark.parametrize("name", METHODS)
def test_every_row_makes_a_method_that_carries_its_name(name: str) -> None:
    assert make_method(name).name == name


def test_powers_of_one_let_zeros_grow_back() -> None:
    assert make_method("sparsyfed", beta=1.0006).zero_grad_at_zero
    assert not make_method("sparsyfed", beta=1.0).zero_grad_at_zero


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("sparsyfed", {"sparsity": 1.0}, "key `sparsity` has value 1.0: .* at least 0 and less than 1"),
        ("sparsyfed", {"sparsity": -0.1}, "key `sparsity` has value -0.1: .* at least 0 and less than 1"),
        ("sparsyfed", {"sparsity": float("nan")}, "key `sparsity` has value nan"),
        ("sparsyfed", {"beta": 0.9}, "key `beta` has value 0.9: .* at least 1 and at most 10 .*infinite gradient"),
        ("sparsyfed", {"beta": -1.0}, "key `beta` has value -1.0: .* at least 1 and at most 10"),
        ("sparsyfed", {"weight_decay": 1e39}, "key `weight_decay` has value 1e[+]39: .* at least 0 and at most 1000"),
        ("sparsyfed", {"uplink": "gradient"}, "key `uplink` has value 'gradient': .*allowed: delta, weights"),
        (
            "sparsyfed",
            {"sparsities": [0.9, 1.5], "shares": [1, 1]},
            r"key `sparsities\[1\]` has value 1.5: .*less than 1",
        ),
        ("sparsyfed", {"sparsities": [0.9, 0.8], "shares": [1]}, "give one share per sparsity"),
        ("topk", {"beta": 1.25}, "key `method.beta` has value 1.25: method topk has no such option; it takes "),
        ("dense", {"sparsity": 0.5}, "key `method.sparsity` has value 0.5: method dense has no such option"),
        ("sparsyfed", {"activation_warmup": 0}, "key `activation_warmup` has value 0: .* at least 1"),
        (
            "flash",
            {"activation_warmup": 5},
            "key `method.activation_warmup` has value 5: method flash has no such option",
        ),
        (
            "sparsyfed",
            {"activation_warmup": 5, "activation_floor": 1.0},
            "key `method.activation_warmup` has value 5: with `method.activation_floor` = 1 inputs are never pruned",
        ),
        ("sparsifed", {}, "key `method.name` has value 'sparsifed': there is no such method; did you mean sparsyfed?"),
        ("qqqq", {}, "allowed are dense, "),
        (
            "flash-jmwst",
            {"regrowth": "free", "zero_biases": "frozen"},
            "key `method.zero_biases` has value 'frozen' and key `method.regrowth` has value 'free': .*; remove one",
        ),
        (
            "flash",
            {"download": "own"},
            "key `method.download` has value 'own': .* there is no `method.sparsities`; add it, or remove",
        ),
        (
            "topk",
            {"download": "own", "uplink": "delta", "sparsities": [0.9, 0.8], "shares": [1, 1]},
            "key `method.download` has value 'own' and key `method.uplink` has value 'delta': .*; remove one",
        ),
        (
            "topk",
            {"download": "own", "sparsities": [n / 20 for n in range(17)], "shares": [1] * 17},
            "key `method.sparsities` has 17 different values: .* at most 16",
        ),
        ("sparsyfed", {"sigma": "exact"}, "key `method.sigma` has value 'exact': method sparsyfed has no such option"),
        ("flash", {"regrowth": "free"}, "key `method.regrowth` has value 'free': method flash has no such option"),
        ("sparsyfed", {"sparsty": 0.5}, "unknown key `sparsty`; did you mean `sparsity`?"),
    ],
)
def test_what_a_method_cannot_be_is_refused_by_key_and_value(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_method(name, **options)


def test_a_manifest_with_a_power_below_one_is_refused_with_the_reason() -> None:
    content = msgspec.json.encode({**msgspec.to_builtins(make_method("sparsyfed")), "beta": 0.5})
    with pytest.raises(
        msgspec.ValidationError, match=r"`beta` has value 0\.5; allowed: at least 1 .*infinite gradient"
    ):
        msgspec.json.decode(content, type=Method)


def test_groups_follow_the_number_of_a_device() -> None:
    method = make_method("topk", sparsities=[0.9, 0.85, 0.8], shares=[40, 30, 30])
    groups = [method.group_of(f"device-{number:03}") for number in range(200)]
    assert groups == ([0] * 40 + [1] * 30 + [2] * 30) * 2
    assert method.sparsity_of("device-50", 2) == 0.85


def test_groups_start_from_a_common_target_in_round_one() -> None:
    method = make_method("topk", sparsities=[0.9, 0.85, 0.8], shares=[40, 30, 30])
    assert {method.sparsity_of(f"d{number}", 1) for number in range(100)} == {0.8}
    assert make_method("topk", sparsity=0.5, sparsities=[0.9], shares=[1]).sparsity_of("d1", 1) == 0.5


def test_a_device_without_a_number_belongs_to_one_group_for_ever() -> None:
    method = make_method("topk", sparsities=[0.9, 0.8], shares=[1, 1])
    drawn = {name: method.group_of(name) for name in ("kitchen", "attic", "cellar", "garage", "porch", "shed")}
    assert set(drawn.values()) == {0, 1}
    assert drawn == {name: method.group_of(name) for name in drawn}


def test_the_command_lists_each_method_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(METHODS)]] == list(METHODS)
    assert max(map(len, lines)) <= 120


def test_the_command_prints_every_field_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == list(METHODS)
    assert document["sparsyfed"]["defaults"]["beta"] == 1.25
    assert "beta" in document["sparsyfed"]["options"]


def test_zeros_stay_where_neither_gradients_nor_an_exchange_bring_them_back() -> None:
    moving = {name for name in METHODS if not make_method(name).keeps_zeros}
    assert moving == {"dense", "topk", "zerofl", "flash-jmwst"}
