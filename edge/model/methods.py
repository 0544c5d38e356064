"""The methods as data: what each does to weights, activations, updates and masks. See docs/reference/methods.md.

A row of METHODS describes a method completely; `make_method` fills in the user's numbers and options. The result
travels in the manifest of the artifacts. Device and coordinator act on its fields, never on its name.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.config import Section, read_section
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.method_conflicts import check_conflicts

__all__ = [
    "FLOOR_STEPS",
    "METHODS",
    "PRICE_STEPS",
    "WARMUP_FEATURE",
    "Method",
    "MethodConfig",
    "MethodRow",
    "group_of",
    "make_method",
    "method_of",
]

Sparsity: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
# Far above anything that trains; float32 would turn still larger values into infinity.
WeightDecay: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1000)]

Reparametrisation = Literal["none", "power", "spectral", "auto-beta"]
Exponent = Literal["max", "sigma"]
WeightPruning = Literal["none", "copy", "in-place"]
Inference = Literal["sent", "trained"]
ActivationDensity = Literal["weights", "target"]
ActivationThreshold = Literal["step", "round"]
Uplink = Literal["whole", "weights", "delta"]
Aggregation = Literal["mean", "nonzero-mean"]
Allocation = Literal["erk", "lamp"]
MaskRule = Literal["free", "fixed", "layer-density", "evolving", "last-round"]

MIN_BETA = 1.0
MAX_BETA = 10.0
WHY_MIN_BETA = "below 1, zero weights have an infinite gradient"
DEFAULT_SPARSITY = 0.95
DEFAULT_WEIGHT_DECAY = 1e-3
FLOOR_STEPS = 10_000
"""The ops' resolution for a share."""
WARMUP_FEATURE = "activation-warmup"
"""What a manifest whose method has `activation_warmup` needs of its reader."""
PRICE_STEPS = 4
"""Steps of a price: quarters, which square roots can compute."""
MAX_PRICE = 2.0
DEFAULT_REGROW_SHARE = 0.2
REGROW_FALL = Fraction(4, 5)
"""From one exchange to the next, the share falls by a fifth ..."""
REGROW_LEAST = Fraction(1, 4)
"""... down to this part of the first."""
SLOWEST_FALL = 10
"""Exchanges after which the share has certainly reached it; keeps the fractions short."""
RegrowEvery: TypeAlias = Annotated[
    int, msgspec.Meta(ge=2, le=1_000_000, description="round 1 makes the mask, so the earliest is 2")
]
RegrowShare: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=0.5)]
Price: TypeAlias = Annotated[
    float, msgspec.Meta(ge=0, le=MAX_PRICE, multiple_of=1 / PRICE_STEPS, description="in steps of 0.25")
]


class Method(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model is trained, pruned and averaged."""

    name: str
    sparsity: Sparsity
    """The target sparsity of updates, or of the last model if nothing is pruned earlier."""
    weight_decay: WeightDecay = DEFAULT_WEIGHT_DECAY
    reparametrisation: Reparametrisation = "power"
    """How theta, used by the network, is computed from the weights w, which are trained and sent."""
    beta: float = 1.0
    """The exponent of `power`; 1 for all others."""
    exponent: Exponent = "max"
    """What `auto-beta` divides a layer's mean magnitude by: its largest (paper) or its spectral norm (code)."""
    sigma: Literal["exact"] | UnsetType = UNSET
    """`exact`: `spectral` divides by the largest singular value of W; left out if by an estimate of |W|'s."""
    zero_grad_at_zero: bool
    """Whether a weight of exactly zero has no gradient: training then never regrows pruned weights."""
    zero_biases: Literal["frozen"] | UnsetType = UNSET
    """Whether a parameter that is never pruned keeps the value zero, too, as biases and BatchNorm's shifts begin with.

    It is left out if they train as usual: devices of earlier versions refuse a field that they do not know.
    """
    start: Literal["erk", "saliency"] | UnsetType = UNSET
    """How the first mask is made; left out if round 1 trains a dense model.

    `erk` keeps as many weights as the target leaves, drawn at random; layers get densities by the Erdos-Renyi-Kernel
    rule. With `saliency` devices vote in round 1, and train from round 2 on.
    """
    prune_weights: WeightPruning = "none"
    """Whether a step uses only the largest weights of each layer but the first, and what happens to the others."""
    inference: Inference = "sent"
    """If steps prune weights, which ones to evaluate and deliver: all that were sent, or those a step would use."""
    prune_activations: bool = False
    """Whether the weight gradient of a layer sees only the largest values of the layer's input."""
    activation_density: ActivationDensity = "weights"
    """The density of a pruned input: that of the layer's own weights, or the target's, in all layers but one."""
    activation_floor: Share = 0.0
    """The least share of an input to keep, however few weights are left; in ten-thousandths."""
    activation_threshold: ActivationThreshold = "step"
    """Whether to find the threshold for an input's values in every step, or once in a round's first step; linear layers
    always use every step.
    """
    activation_warmup: Positive | UnsetType = UNSET
    """In so many rounds from the first on, the gradient sees a layer's whole input; left out if inputs are pruned in
    all rounds.
    """
    uplink: Uplink = "weights"
    """What one global magnitude ranking prunes in an update: nothing, the weights, or their change."""
    allocation: Allocation | UnsetType = UNSET
    """How the weights that pruning keeps are shared among layers; left out for one ranking over all of them."""
    allocation_price: Price | UnsetType = UNSET
    """The power of a layer's positions that divides its scores for `lamp`; left out if it is 0."""
    aggregation: Aggregation = "mean"
    """The mean over all devices, or over those that sent a non-zero value."""
    mask: MaskRule = "free"
    """How the coordinator treats the mask of the averaged model, and whether devices move it."""
    mask_interval: Positive = 1
    """An `evolving` mask may change once in this many rounds; with free regrowth, the coordinator prunes that often."""
    regrowth: Literal["free"] | UnsetType = UNSET
    """`free`: devices train all weights, and the coordinator alone makes an `evolving` mask; left out if they exchange.

    It is left out rather than named: devices of earlier versions refuse a field that they do not know.
    """
    regrow_rate: Share = 0.25
    """For an `evolving` mask, the share of a layer's weights that a device exchanges, halfway through an epoch."""
    regrow_every: RegrowEvery | UnsetType = UNSET
    """In every so many rounds devices vote for zeros, and the coordinator swaps the smallest weights for them; left out
    if it never does.
    """
    regrow_share: RegrowShare | UnsetType = UNSET
    """The share of a layer's weights in the first swap; left out if it is the default."""
    sparsities: tuple[Sparsity, ...] = ()
    """Targets per group of devices; empty if all share one."""
    shares: tuple[Positive, ...] = ()
    """The size of each group, out of the sum of all shares."""
    download: Literal["own"] | UnsetType = UNSET
    """`own`: each group downloads a model of its own target; left out if all download the whole one."""

    def __post_init__(self) -> None:
        # Not a bound of the type: msgspec passes on this sentence, while its own would lack value and reason.
        if not MIN_BETA <= self.beta <= MAX_BETA:
            raise ValueError(
                f"key `beta` has value {self.beta}; allowed: at least {MIN_BETA:g} and at most {MAX_BETA:g} "
                f"({WHY_MIN_BETA})"
            )

    @property
    def masks_gradients(self) -> bool:
        """Whether training must mask the gradient of zero weights, because it does not vanish by itself."""
        return self.zero_grad_at_zero and (self.reparametrisation == "none" or self.has_exact_norm)

    @property
    def has_exact_norm(self) -> bool:
        """Whether weights are divided by the largest singular value of their matrix, on which zeros have an effect."""
        return self.sigma == "exact"

    @property
    def starts_sparse(self) -> bool:
        """Whether no device ever holds a dense model: the export prunes the initial one."""
        return self.start == "erk"

    def votes_in(self, round_number: int) -> bool:
        """Whether devices vote for the first mask in this round, and do not train."""
        return self.start == "saliency" and round_number == 1

    def regrown_share(self, round_number: int) -> Fraction:
        """The share of its weights that a layer may exchange after this round; 0 if none. It falls over time."""
        if self.regrow_every is UNSET or round_number % self.regrow_every:
            return Fraction(0)
        times = min(round_number // self.regrow_every - 1, SLOWEST_FALL)
        return self.most_regrowth * max(REGROW_FALL**times, REGROW_LEAST)

    @property
    def most_regrowth(self) -> Fraction:
        """The largest of those shares."""
        if self.regrow_every is UNSET:
            return Fraction(0)
        share = DEFAULT_REGROW_SHARE if self.regrow_share is UNSET else self.regrow_share
        return Fraction(share).limit_denominator(10_000)

    @property
    def needs_gradients(self) -> str:
        """The option for which devices vote by gradients, empty if they do not."""
        return "regrow_every" if self.regrow_every is not UNSET else "start" if self.start == "saliency" else ""

    @property
    def freezes_zero_biases(self) -> bool:
        """Whether parameters that are never pruned have no gradient where they are exactly zero."""
        return self.zero_biases == "frozen"

    @property
    def keeps_zeros(self) -> bool:
        """Whether local training keeps every zero weight at zero."""
        return self.zero_grad_at_zero and self.mask != "evolving"

    @property
    def warms_up(self) -> bool:
        """Whether the first rounds prune no inputs, and later ones do."""
        return self.activation_warmup is not UNSET

    def keeps_inputs(self, round_number: int) -> bool:
        """Whether this round does not prune inputs yet."""
        return self.activation_warmup is not UNSET and round_number <= self.activation_warmup

    @property
    def least_activations(self) -> Fraction:
        """`activation_floor` as a fraction, so that all sides compute the same."""
        return Fraction(round(self.activation_floor * FLOOR_STEPS), FLOOR_STEPS)

    @property
    def density(self) -> Fraction:
        """The share that the target leaves, as a fraction, so that all sides compute the same."""
        return Fraction(1 - self.sparsity).limit_denominator(10_000)

    def group_of(self, device: str) -> int:
        """The device's group among those with their own targets."""
        return group_of(device, self.shares)

    def sparsity_of(self, device: str, round_number: int) -> float:
        """The target of one device's update; in the first round all use the common one."""
        if round_number == 1 or not self.sparsities:
            return self.sparsity
        return self.sparsities[self.group_of(device)]

    def evolves_mask(self, round_number: int) -> bool:
        """Whether devices exchange weights in this round; never in the first, which makes the mask."""
        if self.mask != "evolving" or self.regrowth == "free":
            return False
        return round_number > 1 and (round_number - 2) % self.mask_interval == 0

    def prunes_by_layer(self, round_number: int) -> bool:
        """Whether the coordinator prunes this round's average to the mean of the devices' layer densities."""
        if self.mask == "evolving":
            return (round_number - 1) % (self.mask_interval if self.regrowth == "free" else 1) == 0
        return self.mask == "layer-density" and round_number == 1


def group_of(device: str, shares: Sequence[int]) -> int:
    """A device's group: by the number in its name modulo the sum of the shares, or by a hash if it has no number."""
    if not shares:
        return 0
    number = re.search(r"(\d+)\D*$", device)
    drawn = int(number.group(1)) if number else int.from_bytes(hashlib.sha256(device.encode()).digest()[:8], "big")
    place = drawn % sum(shares)
    bounds = (sum(shares[: group + 1]) for group in range(len(shares)))
    return next(group for group, bound in enumerate(bounds) if place < bound)


class MethodConfig(Section, frozen=True, kw_only=True):
    """How to train and prune the model; missing options take the method's default (docs/reference/methods.md)."""

    name: str = "sparsyfed"
    """A method from the list of `sparsyedge methods`."""
    sparsity: Sparsity | None = None
    """The share of prunable weights that are zero."""
    beta: Annotated[float, msgspec.Meta(ge=MIN_BETA, le=MAX_BETA, description=WHY_MIN_BETA)] | None = None
    """The exponent of Powerpropagation."""
    weight_decay: WeightDecay | None = None
    """How strongly each step pulls weights towards zero."""
    exponent: Exponent | None = None
    """What `auto-beta` divides a layer's mean magnitude by: its largest weight or its spectral norm."""
    sigma: Literal["exact"] | None = None
    """`exact`: `spectral` divides by the largest singular value of W, not by an estimate of that of |W|."""
    start: Literal["erk", "saliency"] | None = None
    """The first mask, so that no device ever trains a dense model. `erk`: at random, before round 1; `saliency`: by the
    votes of round 1's devices, which do not train in it."""
    zero_biases: Literal["frozen"] | None = None
    """`frozen`: biases and BatchNorm's shifts that are zero never train, as in the reference code's FLASH."""
    prune_weights: Literal["copy", "in-place"] | None = None
    """Whether `zerofl` keeps or forgets the weights that a step leaves out."""
    inference: Inference | None = None
    """What `zerofl` evaluates and delivers: all weights that were sent, or those that a step would use."""
    activation_floor: Share | None = None
    """The least share of a layer's input to keep, however few weights are left."""
    activation_threshold: ActivationThreshold | None = None
    """Whether to find the threshold for inputs in every step, or once per round."""
    activation_warmup: Positive | None = None
    """In so many rounds from the first on, the inputs of layers are not pruned."""
    uplink: Literal["weights", "delta"] | None = None
    """What to prune before sending: the weights, or their change."""
    allocation: Literal["global", "erk", "lamp"] | None = None
    """How pruning shares the budget among layers: one ranking of all weights, by shapes, or by LAMP's scores."""
    allocation_price: Price | None = None
    """How much `lamp` minds multiply-adds: it divides a score by the positions that the weight applies to, to this
    power, in steps of 0.25."""
    aggregation: Aggregation | None = None
    """Whether to average a weight over all devices or only over those that sent it."""
    mask_interval: Positive | None = None
    """The mask of `flash-jmwst` may change once in this many rounds."""
    regrowth: Literal["free"] | None = None
    """`free`: devices of `flash-jmwst` train all weights, and the server prunes every `mask_interval` rounds."""
    regrow_every: RegrowEvery | None = None
    """In every so many rounds the smallest weights of each layer give way to zeros that devices vote for; if left out,
    never."""
    regrow_share: RegrowShare | None = None
    """The share of a layer's weights that the first such round exchanges; it falls to a quarter of that."""
    sparsities: tuple[Sparsity, ...] | None = None
    """Target sparsities of groups of devices, if they differ."""
    shares: tuple[Positive, ...] | None = None
    """How many devices, out of the sum of these numbers, belong to each group."""
    download: Literal["own"] | None = None
    """`own`: a group of devices downloads a model that is pruned to its own target; otherwise the whole one."""


class MethodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One method: a one-line summary, its fields, and the options of MethodConfig that it accepts."""

    summary: str
    fields: dict[str, Any]
    options: tuple[str, ...] = ()


COMMON_OPTIONS = ("weight_decay",)
ACTIVATION_OPTIONS = ("activation_floor", "activation_threshold", "activation_warmup")
ALLOCATION_OPTIONS = ("allocation", "allocation_price")
PRUNING_OPTIONS = ("sparsity", "uplink", "aggregation", "sparsities", "shares", "download", *ALLOCATION_OPTIONS)
LASTING_OPTIONS = (*PRUNING_OPTIONS, "start")
"""For methods whose zeros stay zero: a mask made before round 1 lasts."""
REGROW_OPTIONS = ("regrow_every", "regrow_share")

METHODS: dict[str, MethodRow] = {
    "dense": MethodRow(
        summary="plain federated averaging: nothing is pruned",
        fields={"reparametrisation": "none", "zero_grad_at_zero": False, "uplink": "whole"},
    ),
    "sparsyfed": MethodRow(
        summary="powers of weights, inputs pruned as densely as the weights, global top-k on what is sent",
        fields={"beta": 1.25, "zero_grad_at_zero": True, "prune_activations": True},
        options=("beta", *ACTIVATION_OPTIONS, *LASTING_OPTIONS, *REGROW_OPTIONS),
    ),
    "sparsyfed-no-act": MethodRow(
        summary="sparsyfed without activation pruning",
        fields={"beta": 1.25, "zero_grad_at_zero": True},
        options=("beta", *LASTING_OPTIONS, *REGROW_OPTIONS),
    ),
    "topk": MethodRow(
        summary="dense training, global top-k on what is sent; zeros grow back",
        fields={"reparametrisation": "none", "zero_grad_at_zero": False},
        options=PRUNING_OPTIONS,
    ),
    "fixed-mask": MethodRow(
        summary="sparsyfed without powers, on the mask of round 1: global top-k of its average, never changed",
        fields={
            "reparametrisation": "none",
            "zero_grad_at_zero": True,
            "prune_activations": True,
            "mask": "fixed",
        },
        options=(*ACTIVATION_OPTIONS, *LASTING_OPTIONS),
    ),
    "zerofl": MethodRow(
        summary="each step computes with every layer's largest weights and inputs; global top-k on what is sent",
        fields={
            "reparametrisation": "none",
            "zero_grad_at_zero": False,
            "prune_weights": "copy",
            "prune_activations": True,
            "activation_density": "target",
        },
        options=("prune_weights", "inference", *PRUNING_OPTIONS),
    ),
    "flash": MethodRow(
        summary="FLASH-SPDST: a mask by the mean layer densities of round 1, never changed",
        fields={"reparametrisation": "none", "zero_grad_at_zero": True, "mask": "layer-density"},
        options=("zero_biases", *LASTING_OPTIONS),
    ),
    "flash-jmwst": MethodRow(
        summary="FLASH-JMWST: as flash, and devices move a quarter of the mask in every mask_interval-th round",
        fields={"reparametrisation": "none", "zero_grad_at_zero": True, "mask": "evolving"},
        options=("mask_interval", "regrowth", "zero_biases", *PRUNING_OPTIONS),
    ),
    "spectral": MethodRow(
        summary="sparsyfed with w|w| over the spectral norm of |W| in place of powers",
        fields={"reparametrisation": "spectral", "zero_grad_at_zero": True, "prune_activations": True},
        options=("sigma", *LASTING_OPTIONS),
    ),
    "auto-beta": MethodRow(
        summary="sparsyfed with an exponent per layer, derived from the layer's weights when a round begins",
        fields={"reparametrisation": "auto-beta", "zero_grad_at_zero": True, "prune_activations": True},
        options=("exponent", *ACTIVATION_OPTIONS, *LASTING_OPTIONS),
    ),
    "naive-powerprop": MethodRow(
        summary="powers of weights, trained and sent dense; the model of the last round is pruned",
        fields={"beta": 1.25, "zero_grad_at_zero": True, "uplink": "whole", "mask": "last-round"},
        options=("beta", "sparsity", *ALLOCATION_OPTIONS),
    ),
}


def make_method(name: str, **options: Any) -> Method:
    """The method by name, with options as in the `[method]` table; raises ConfigError as `method_of` does."""
    return method_of(read_section({"name": name, **options}, MethodConfig))


def method_of(config: MethodConfig) -> Method:
    """The method of a config; raises ConfigError that names the key, its value and what is allowed."""
    row = METHODS.get(config.name)
    if row is None:
        near = difflib.get_close_matches(config.name, METHODS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(METHODS)}"
        raise ConfigError(f"key `method.name` has value {config.name!r}: there is no such method; {hint}")
    options = _options(config)
    _check_options(config.name, options, allowed=(*row.options, *COMMON_OPTIONS))
    fields = {**row.fields, **_stated(options)}
    if "sparsity" not in fields:
        # In round 1 no group may lose weights that it could keep, so the lowest sparsity applies.
        fallback = DEFAULT_SPARSITY if "sparsity" in row.options else 0.0
        fields["sparsity"] = min(config.sparsities or (fallback,))
    if config.beta is not None:
        # At beta = 1 a zero weight has a gradient.
        fields["zero_grad_at_zero"] = config.beta > 1
    if config.regrowth == "free":
        fields["zero_grad_at_zero"] = False
    return Method(name=config.name, **fields)


def _options(config: MethodConfig) -> dict[str, Any]:
    """The options that the user set."""
    return {key: value for key, value in msgspec.structs.asdict(config).items() if key != "name" and value is not None}


def _stated(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that a manifest leaves out, so that devices without them read it."""
    silent = {"allocation": "global", "allocation_price": 0, "regrow_share": DEFAULT_REGROW_SHARE}
    return {key: value for key, value in options.items() if key not in silent or value != silent[key]}


def _check_options(name: str, options: dict[str, Any], *, allowed: tuple[str, ...]) -> None:
    for key, value in options.items():
        if key not in allowed:
            raise ConfigError(
                f"key `method.{key}` has value {value!r}: method {name} has no such option; "
                f"it takes {', '.join(sorted(allowed))}"
            )
    check_conflicts(options)
