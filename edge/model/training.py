"""How a device takes its training steps: optimizer, gradient clipping, label smoothing, augmentation.

`Training` travels in the manifest of the artifacts, like the method. The default, plain SGD, is left out of it, so that
artifacts that need nothing new can be read by every device. See docs/reference/training.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from sparsyedge.edge.config import Section, read_section
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import Method

__all__ = [
    "FEATURE",
    "OPTIMIZER_STEPS",
    "PLAIN_SGD",
    "SHIFT_FEATURE",
    "Optimizer",
    "Training",
    "TrainingConfig",
    "check_training",
    "check_votes",
    "make_training",
    "training_of",
]

FEATURE = "training-settings"
"""What a manifest with another training than plain SGD needs of its reader."""
SHIFT_FEATURE = "label-shift"
"""What a manifest with `label_shift` needs as well."""
OPTIMIZER_STEPS = "optimizer_steps"
"""The steps that the optimizer has taken, among its tensors."""

Optimizer = Literal["sgd", "momentum", "adamw"]
OptimizerState = Literal["fresh", "keep"]

Momentum: TypeAlias = Annotated[float, msgspec.Meta(gt=0, lt=1)]
# Graphs hold seven digits; closer to 1, the correction of a first step would divide by zero.
Beta: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=0.99999)]
Betas: TypeAlias = Annotated[tuple[Beta, ...], msgspec.Meta(min_length=2, max_length=2)]
# A much smaller one is zero in float32, and 0 / 0 is no step.
Epsilon: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-12, le=1)]
ClipNorm: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
Smoothing: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
# Beyond, classes that a device lacks leave the loss altogether.
LabelShift: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=4)]
Crop: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1024)]
# Larger values only draw the share closer to a half.
Mixup: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=2)]

DEFAULT_MOMENTUM = 0.9
OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum", "nesterov", "state"),
    "adamw": ("betas", "epsilon", "state"),
}
"""The keys that only some optimizers have."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How a device takes a step; weight decay belongs to the method."""

    optimizer: Optimizer = "sgd"
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """Of `momentum`; 0 for all others."""
    nesterov: bool = False
    betas: Betas = (0.9, 0.999)
    """Of `adamw`."""
    epsilon: Epsilon = 1e-8
    """Of `adamw`."""
    state: OptimizerState = "fresh"
    """Whether the optimizer forgets everything between two rounds."""
    clip_norm: ClipNorm | None = None
    """The largest norm of all gradients together, before weight decay; None does not clip."""
    label_smoothing: Smoothing = 0.0
    label_shift: LabelShift = 0.0
    """How strongly a step's logits are shifted by the log of the device's class frequencies; 0 does not."""
    crop: Crop = 0
    """The padding of a random crop, in pixels."""
    flip: bool = False
    mixup: Mixup = 0.0
    """Alpha of the Beta distribution that mixing shares are drawn from; 0 does not mix."""

    @property
    def state_suffixes(self) -> tuple[str, ...]:
        """What the optimizer keeps for every trained tensor, as suffixes of the tensor's name."""
        return {"sgd": (), "momentum": (".momentum",), "adamw": (".first_moment", ".second_moment")}[self.optimizer]

    @property
    def counts_steps(self) -> bool:
        """Whether a step depends on how many came before it."""
        return self.optimizer == "adamw"

    @property
    def is_plain(self) -> bool:
        """Whether a step is one of plain SGD on the plain loss; onnxruntime's training API knows no other."""
        changed = self.clip_norm is not None or self.label_smoothing or self.label_shift or self.mixup
        return self.optimizer == "sgd" and not changed

    @property
    def augments(self) -> bool:
        """Whether samples change before a step."""
        return bool(self.crop or self.flip or self.mixup)


PLAIN_SGD = Training()


class TrainingConfig(Section, frozen=True, kw_only=True):
    """How devices take a training step; plain SGD if left out (docs/reference/training.md)."""

    optimizer: Optimizer = "sgd"
    """What turns gradients into a step. `adamw` needs a smaller learning rate than the default."""
    momentum: Momentum | None = None
    """The share of the last step that `momentum` keeps; 0.9 if left out."""
    nesterov: bool | None = None
    """Whether `momentum` looks ahead, as Nesterov's does; false if left out."""
    betas: Betas | None = None
    """How slowly the two moments of `adamw` forget; [0.9, 0.999] if left out."""
    epsilon: Epsilon | None = None
    """What `adamw` adds to the divisor; 1e-8 if left out."""
    state: OptimizerState | None = None
    """Whether the optimizer begins every round afresh, or keeps its state on the device; `fresh` if left out."""
    clip_norm: ClipNorm | None = None
    """Scale gradients down to this norm, over all parameters; not at all if left out."""
    label_smoothing: Smoothing = 0.0
    """The share of a label that goes to all classes alike."""
    label_shift: LabelShift = 0.0
    """Add this many times the log of the device's class frequencies to the logits of a training step; 0 does not."""
    crop: Crop = 0
    """Pad images by this many pixels and cut them back at a random place; 0 does not."""
    flip: bool = False
    """Whether to mirror images, left to right, each with a chance of a half."""
    mixup: Mixup = 0.0
    """Mix pairs of samples, by shares from a Beta distribution with this alpha; 0 does not."""


def make_training(**options: Any) -> Training:
    """The training with options as in the `[training]` table; raises ConfigError as `training_of` does."""
    return training_of(_read({"training": options}).training)


def training_of(config: TrainingConfig) -> Training:
    """The training of a config; raises ConfigError that names the key, its value and what is allowed."""
    given = {key: value for key, value in msgspec.structs.asdict(config).items() if value is not None}
    allowed = OPTIONS[config.optimizer]
    for key in {key for keys in OPTIONS.values() for key in keys} - set(allowed):
        if key in given:
            which = [name for name, keys in OPTIONS.items() if key in keys]
            raise ConfigError(
                f"key `training.{key}` has value {given[key]!r}: optimizer {config.optimizer} has no such option; "
                f"allowed with optimizer {' and '.join(which)}"
            )
    if config.label_shift and config.label_smoothing:
        raise ConfigError(
            f"key `training.label_shift` has value {config.label_shift}: with `training.label_smoothing` = "
            f"{config.label_smoothing} devices would learn that classes they lack are likely, to make up for the "
            f"shift; remove one of the two keys"
        )
    if config.optimizer == "momentum":
        given.setdefault("momentum", DEFAULT_MOMENTUM)
    return Training(**given)


def check_training(training: Training, shape: Sequence[int], *, has_classes: bool = True) -> None:
    """Raise ConfigError if a model whose samples have this shape cannot be trained so."""
    if training.label_smoothing and not has_classes:
        raise ConfigError(
            f"key `training.label_smoothing` has value {training.label_smoothing}: it spreads labels over classes, and "
            f"the model has none; leave it out"
        )
    if training.label_shift and not has_classes:
        raise ConfigError(
            f"key `training.label_shift` has value {training.label_shift}: it shifts the logits of classes, and the "
            f"model has none; leave it out"
        )
    for key, value in (("crop", training.crop), ("flip", training.flip)):
        if value and (len(shape) != 3 or min(shape[1:]) < 2):
            raise ConfigError(
                f"key `training.{key}` has value {value!r}: it works on images (channels, height, width), and samples "
                f"have shape {tuple(shape)}; leave it out"
            )
    if training.crop and training.crop > min(shape[1:]):
        raise ConfigError(
            f"key `training.crop` has value {training.crop}: images are {shape[1]} x {shape[2]}; allowed: at most "
            f"{min(shape[1:])}"
        )


def check_votes(method: Method, training: Training) -> None:
    """Raise ConfigError if devices are to vote by gradients, and a step does not show them."""
    option = method.needs_gradients
    shown = {"optimizer": training.optimizer != "sgd", "clip_norm": training.clip_norm is not None}
    for key, hides in shown.items():
        if option and hides:
            raise ConfigError(
                f"key `training.{key}` has value {getattr(training, key)!r}: with `method.{option}` = "
                f"{getattr(method, option)!r} devices read gradients off a step of plain SGD; leave one of the two out"
            )


class _File(Section, frozen=True, kw_only=True):
    """A file with this table alone, so that errors name keys as in a run file."""

    training: TrainingConfig


def _read(content: dict[str, Any]) -> _File:
    return read_section(content, _File)
