"""The [training] table: what it means, what it refuses, and what of it reaches the manifest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fixtures.repository import REPOSITORY

from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.model.artifacts import amend_manifest, decode_manifest, encode_manifest
from sparsyedge.edge.model.training import FEATURE, PLAIN_SGD, Training, check_training, make_training
from sparsyedge.edge.native import ABI_VERSION

GOLDEN = amend_manifest((REPOSITORY / "tests/golden/manifest.json").read_bytes(), ops_abi=ABI_VERSION)


def test_nothing_said_is_plain_sgd() -> None:
    assert make_training() == PLAIN_SGD
    assert PLAIN_SGD.is_plain
    assert not PLAIN_SGD.state_suffixes


def test_an_optimizer_brings_its_usual_options() -> None:
    assert make_training(optimizer="momentum").momentum == 0.9
    adamw = make_training(optimizer="adamw")
    assert (adamw.betas, adamw.epsilon, adamw.momentum, adamw.state) == ((0.9, 0.999), 1e-8, 0.0, "fresh")


@pytest.mark.parametrize(
    "options", [{"clip_norm": 1.0}, {"label_smoothing": 0.1}, {"label_shift": 1.0}, {"mixup": 0.2}]
)
def test_the_training_api_knows_no_other_step_than_plain_sgd(options: dict[str, Any]) -> None:
    assert not make_training(**options).is_plain


def test_crops_and_flips_need_no_other_step() -> None:
    assert make_training(crop=4, flip=True).is_plain


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer": "adam"}, r"key `training.optimizer` has value 'adam': .*; allowed: adamw, momentum, sgd"),
        ({"optimiser": "adamw"}, r"unknown key `training.optimiser`; did you mean `optimizer`\?"),
        (
            {"momentum": 0.9},
            r"key `training.momentum` has value 0.9: optimizer sgd has no such option; allowed with",
        ),
        ({"state": "keep"}, r"`training.state` has value 'keep': optimizer sgd .* with optimizer momentum and adamw"),
        ({"optimizer": "adamw", "nesterov": True}, r"`training.nesterov` has value True: optimizer adamw has no such"),
        ({"optimizer": "momentum", "betas": [0.9, 0.99]}, r"`training.betas` has value .* optimizer momentum has no"),
        (
            {"optimizer": "momentum", "momentum": 1.0},
            r"`training.momentum` has value 1.0: .*; allowed: more than 0",
        ),
        ({"optimizer": "adamw", "betas": [0.9]}, r"key `training.betas` has value \[0.9\]: expected `array` of length"),
        ({"optimizer": "adamw", "betas": [0.9, 1.0]}, r"key `training.betas\[1\]` has value 1.0: .* at most 0.99999"),
        ({"optimizer": "adamw", "epsilon": 0.0}, r"`training.epsilon` has value 0.0: .*; allowed: at least 1e-12"),
        ({"optimizer": "momentum", "state": "kept"}, r"`training.state` has value 'kept': .*; allowed: fresh, keep"),
        ({"clip_norm": -1.0}, r"key `training.clip_norm` has value -1.0: .*; allowed: at least 1e-06"),
        ({"clip_norm": float("nan")}, r"key `training.clip_norm` has value nan"),
        (
            {"label_smoothing": 1.0},
            r"`training.label_smoothing` has value 1.0: .* at least 0 and less than 1",
        ),
        ({"crop": -1}, r"key `training.crop` has value -1: .*; allowed: at least 0 and at most 1024"),
        ({"flip": "yes"}, r"key `training.flip` has value 'yes': expected `bool`"),
        (
            {"label_shift": 1.0, "label_smoothing": 0.1},
            r"key `training.label_shift` has value 1.0: with `training.label_smoothing` = 0.1 .* remove one of the two",
        ),
        ({"label_shift": 5.0}, r"key `training.label_shift` has value 5.0: .*; allowed: at least 0 and at most 4"),
        ({"label_shift": float("nan")}, r"key `training.label_shift` has value nan"),
        ({"mixup": 3.0}, r"key `training.mixup` has value 3.0: .*; allowed: at least 0 and at most 2"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_what_is_allowed(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_training(**options)


@pytest.mark.parametrize(
    ("options", "shape", "sentence"),
    [
        (
            {"crop": 4},
            (1, 1, 8000),
            r"`training.crop` has value 4: it works on images .* samples have shape \(1, 1",
        ),
        ({"flip": True}, (3, 128), r"`training.flip` has value True: it works on images"),
        ({"crop": 20}, (3, 32, 16), r"`training.crop` has value 20: images are 32 x 16; allowed: at most 16"),
    ],
)
def test_augmentation_of_anything_but_images_is_refused(
    options: dict[str, Any], shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_training(make_training(**options), shape)


def test_labels_without_classes_cannot_be_smoothed_but_mixed() -> None:
    check_training(make_training(mixup=0.2), (3, 128), has_classes=False)
    with pytest.raises(ConfigError, match=r"`training.label_smoothing` has value 0.1: it spreads labels over classes"):
        check_training(make_training(label_smoothing=0.1), (3, 128), has_classes=False)
    with pytest.raises(ConfigError, match=r"`training.label_shift` has value 1.0: it shifts the logits of classes"):
        check_training(make_training(label_shift=1.0), (3, 128), has_classes=False)


def test_a_manifest_of_plain_sgd_is_what_it_always_was() -> None:
    manifest = decode_manifest(GOLDEN, source="golden")
    assert manifest.training == PLAIN_SGD
    assert not manifest.optimizer_shapes
    assert encode_manifest(manifest) == GOLDEN


def test_a_manifest_carries_the_training_and_demands_its_feature() -> None:
    training = make_training(optimizer="adamw", state="keep", clip_norm=1.0)
    changed = msgspec.structs.replace(
        decode_manifest(GOLDEN, source="golden"), stated_training=training, needs=(FEATURE,)
    )
    content = encode_manifest(changed)
    assert decode_manifest(content, source="copy").training == training
    assert b'"training": {' in content
    assert FEATURE in OURS.features


def test_training_that_a_later_version_added_is_refused() -> None:
    content = amend_manifest(GOLDEN, training={"optimizer": "adamw", "warm_up": 5})
    with pytest.raises(ArtifactError, match=r"unknown field `warm_up`"):
        decode_manifest(content, source="later")


def test_optimizers_remember_something_for_every_trained_tensor() -> None:
    manifest = msgspec.structs.replace(
        decode_manifest(GOLDEN, source="golden"), stated_training=Training(optimizer="adamw")
    )
    trained = [parameter for parameter in manifest.parameters if parameter.trainable]
    assert len(manifest.optimizer_shapes) == 2 * len(trained) + 1
    assert manifest.optimizer_shapes["optimizer_steps"] == (1,)
