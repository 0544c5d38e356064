"""The runs behind the paper's tables and figures: one function per table makes its rows, at either scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparsyedge.benchmarks.paper.published import find_published
from sparsyedge.benchmarks.paper.settings import Pretraining, Scale, Setting
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.model.training import TrainingConfig

__all__ = [
    "SPARSITIES",
    "Row",
    "accuracy_rows",
    "at_alphas",
    "beta_rows",
    "communication_rows",
    "each",
    "global_sparsity_rows",
    "heterogeneous_rows",
    "layer_rows",
    "lever_rows",
    "mask_rows",
    "movement_rows",
    "order_rows",
    "regime_rows",
    "reparametrisation_rows",
    "vit_rows",
]

IID = 1000.0
PRETRAINING_SEED = 1337
VALIDATION = 5000
AVERAGED = 10
REGROW_EVERY = 10
COMPARED = ("sparsyfed", "topk", "zerofl", "flash")
SPARSITIES = (0.9, 0.95, 0.99, 0.995, 0.999)
"""The paper's."""
ALPHAS = (IID, 1.0, 0.1)
FEWER_VALUES = {"sparsyfed": "19.29", "zerofl": "11.62", "flash": "19.89"}
"""The paper's, at 0.95 on CIFAR-100; it says 19.29 of SparsyFed, and 1.66 times ZeroFL's and 0.97 times FLASH's."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a method on a data set, over all seeds."""

    label: str
    method: MethodConfig
    dataset: str = "cifar10"
    alpha: float = 0.1
    devices: int = 100
    model: str | None = None
    """Overrides the scale's and the user's choice."""
    width: int | None = None
    """Overrides the width in the same way."""
    rounds: int | None = None
    """Overrides the scale's number, at full scale only; the user's number wins."""
    small_rounds: int | None = None
    """The same at the small scale."""
    learning_rates: tuple[float, float] | None = None
    """Of the first and the last round; overrides the scale's and the user's choice."""
    epochs: int = 1
    batch_size: int = 16
    eval_every: int | None = None
    """Overrides the scale's."""
    training: TrainingConfig | None = None
    init: str | None = None
    pretraining: Pretraining | None = None
    panels: str = ""
    """Rows with the same text are drawn together; it is part of their labels."""
    validation: int | None = None
    """Training samples set aside to evaluate rounds on."""
    average: int | None = None
    """How many of the last global models are averaged for evaluation."""
    selection: Literal["balanced"] | None = None
    """How cohorts are picked."""
    paper: dict[str, str] = field(default_factory=dict)
    """The paper's figures, by column."""

    def settings(
        self, scale: Scale, seeds: tuple[int, ...], *, full: bool, rounds: int | None = None
    ) -> Iterator[Setting]:
        """The row's runs; the user's number of rounds wins over the row's and the scale's."""
        if rounds is None:
            rounds = (self.rounds if full else self.small_rounds) or scale.rounds[self.dataset]
        first, last = self.learning_rates or (scale.learning_rate, scale.last_learning_rate)
        for seed in seeds:
            yield Setting(
                dataset=self.dataset,
                model=self.model or scale.model(self.dataset),
                method=self.method,
                alpha=self.alpha,
                devices=self.devices,
                cohort=10,
                rounds=rounds,
                width=self.width or scale.width,
                learning_rate=first,
                last_learning_rate=min(first, last),
                eval_every=min(self.eval_every or scale.eval_every, rounds),
                seed=seed,
                epochs=self.epochs,
                batch_size=self.batch_size,
                training=self.training,
                validation=self.validation,
                selection=self.selection,
                average=self.average,
                init=self.init,
                pretraining=self.pretraining,
            )


def _method(name: str, sparsity: float | None = None, **options: object) -> MethodConfig:
    return MethodConfig(name=name, sparsity=sparsity, **options)  # type: ignore[arg-type]


def accuracy_rows(full: bool) -> tuple[Row, ...]:
    """Methods x sparsities x how alike the devices' data is."""
    datasets = ("cifar10", "cifar100", "speech_commands") if full else ("cifar10",)
    alphas = ALPHAS if full else (0.1,)
    sparsities = SPARSITIES if full else (0.95, 0.99)
    rows = []
    for dataset in datasets:
        for alpha in alphas:
            place = f"{dataset} a={alpha:g}"
            rows.append(Row(label=f"{place} dense", method=_method("dense"), dataset=dataset, alpha=alpha))
            for sparsity in sparsities:
                for name in COMPARED:
                    rows.append(
                        Row(
                            label=f"{place} {name} {sparsity:g}",
                            method=_tuned(name, sparsity, dataset, full=full),
                            dataset=dataset,
                            alpha=alpha,
                        )
                    )
    if not full:
        rows += _wider(0.99)
        # A single run on sound, with few devices: the machine may have only a subset of the clips.
        method = _tuned("sparsyfed", 0.95, "speech_commands", full=full)
        sound: dict[str, Any] = {"dataset": "speech_commands", "alpha": 1.0, "devices": 10}
        rows.append(Row(label="speech_commands a=1 sparsyfed 0.95", method=method, **sound))
    return tuple(rows)


def _wider(sparsity: float) -> list[Row]:
    """ZeroFL in a net wide enough for so few weights, with SparsyFed next to it.

    ZeroFL keeps the same share of every layer. In the narrow net that leaves no path from the image to a logit.
    """
    return [
        Row(label=f"width 16 {name} {sparsity:g}", method=_tuned(name, sparsity, full=False), width=16)
        for name in ("sparsyfed", "zerofl")
    ]


def _tuned(name: str, sparsity: float, dataset: str = "cifar10", *, full: bool) -> MethodConfig:
    """A method of the paper's comparison, with its exponent for the data set; adjusted at small scale to make it train.

    ZeroFL's steps see a different net from the one it sends, which stays at chance level at that scale.
    """
    if name == "sparsyfed" and dataset == "speech_commands":
        return _method(name, sparsity, beta=1.15)
    if name == "zerofl" and not full:
        return _method(name, sparsity, inference="trained")
    return _method(name, sparsity)


def each(names: Sequence[str], sparsities: Sequence[float] = (0.95,), **row: Any) -> tuple[Row, ...]:
    """A row for every method at every sparsity, and one for `dense`, which has no sparsity."""
    pruned = tuple(
        Row(label=f"{name} {sparsity:g}", method=_method(name, sparsity), **row)
        for sparsity in sparsities
        for name in names
        if name != "dense"
    )
    return (Row(label="dense", method=_method("dense"), **row), *pruned) if "dense" in names else pruned


def _wide_data(full: bool) -> str:
    """The data set of the paper's figures about bytes and masks; the small scale has no room for 100 classes."""
    return "cifar100" if full else "cifar10"


def communication_rows(full: bool) -> tuple[Row, ...]:
    data = _wide_data(full)
    return (
        Row(label="dense", method=_method("dense"), dataset=data, paper={"fewer_values": "1"}),
        *(
            Row(
                label=f"{name} 0.95",
                method=_tuned(name, 0.95, full=full),
                dataset=data,
                paper={"fewer_values": FEWER_VALUES[name]} if name in FEWER_VALUES else {},
            )
            for name in COMPARED
        ),
    )


def mask_rows(full: bool) -> tuple[Row, ...]:
    return tuple(
        Row(label=f"{name} 0.95", method=_tuned(name, 0.95, full=full), dataset=_wide_data(full)) for name in COMPARED
    )


def global_sparsity_rows(full: bool) -> tuple[Row, ...]:
    """Sparsity over rounds: CIFAR-100 at 0.9, and several targets on data that the paper does not name."""
    methods = ("sparsyfed", "topk", "zerofl")
    if not full:
        return tuple(Row(label=f"{name} 0.9", method=_tuned(name, 0.9, full=full)) for name in methods)
    targets = [("cifar100", 0.9), *(("cifar10", sparsity) for sparsity in SPARSITIES[1:])]
    return tuple(
        Row(label=f"{dataset} {name} {sparsity:g}", method=_method(name, sparsity), dataset=dataset)
        for dataset, sparsity in targets
        for name in methods
    )


def layer_rows(full: bool) -> tuple[Row, ...]:
    return tuple(Row(label=f"{name} 0.6", method=_tuned(name, 0.6, full=full)) for name in ("sparsyfed", "zerofl"))


def at_alphas(full: bool, methods: Sequence[str], sparsities: Sequence[float]) -> tuple[Row, ...]:
    """Methods at sparsities, for all of the paper's alphas at full scale."""
    alphas = ALPHAS if full else (0.1,)
    return tuple(
        Row(
            label=f"a={alpha:g} {name} {sparsity:g}" if full else f"{name} {sparsity:g}",
            method=_method(name, sparsity),
            alpha=alpha,
        )
        for alpha in alphas
        for sparsity in sparsities
        for name in methods
        if sparsity or name == "naive-powerprop"
    )


def reparametrisation_rows(full: bool) -> tuple[Row, ...]:
    """What weights become in the network; at full scale also dense, and none with the paper's activation pruning."""
    choices: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("powerpropagation", "sparsyfed", {}),
        ("spectral", "spectral", {}),
        ("exponent by max (paper)", "auto-beta", {}),
        ("exponent by sigma (code)", "auto-beta", {"exponent": "sigma"}),
        ("none, fixed mask", "fixed-mask", {}),
        ("none, top-k", "topk", {}),
    )
    if full:
        choices = (
            *choices,
            ("spectral by sigma(W) (paper)", "spectral", {"sigma": "exact"}),
            ("none, activations pruned (paper)", "sparsyfed", {"beta": 1.0}),
        )
        return (
            Row(label="dense", method=_method("dense"), alpha=1.0),
            *(
                Row(label=f"{label} {sparsity:g}", method=_method(name, sparsity, **options), alpha=1.0)
                for sparsity in SPARSITIES
                for label, name, options in choices
            ),
        )
    # The small scale's BatchNorm drowns spectral weights, which are tiny; they train only with the usual BatchNorm.
    usual = (("spectral", "spectral"), ("powerpropagation", "sparsyfed"))
    return (
        *(Row(label=label, method=_method(name, 0.95, **options)) for label, name, options in choices),
        *(Row(label=f"{label}, resnet18", method=_method(name, 0.95), model="resnet18") for label, name in usual),
    )


def beta_rows(full: bool) -> tuple[Row, ...]:
    common: dict[str, Any] = {"alpha": 1.0 if full else 0.1, "rounds": 500}
    powers = tuple(
        Row(label=f"beta {beta:g}", method=_method("sparsyfed", 0.95, beta=beta), **common)
        for beta in ((1.05, 1.1, 1.15, 1.25, 1.5, 1.75, 2.0) if full else (1.05, 1.25, 1.5))
    )
    others = (("dense", None), ("topk", 0.95), ("auto-beta", 0.95)) if full else ()
    return (*powers, *(Row(label=name, method=_method(name, sparsity), **common) for name, sparsity in others))


def movement_rows(full: bool) -> tuple[Row, ...]:
    methods = ("dense", "sparsyfed", "topk")
    if not full:
        return each(methods, rounds=200)
    rows = [
        replace(row, label=f"{dataset} {row.label}")
        for dataset in ("cifar10", "cifar100", "speech_commands")
        for row in each(methods, rounds=200, dataset=dataset)
    ]
    return tuple(
        row
        if row.method.sparsity is None
        else replace(row, method=_tuned(row.method.name, 0.95, row.dataset, full=full))
        for row in rows
    )


def heterogeneous_rows(full: bool) -> tuple[Row, ...]:
    """Groups with targets of their own; the paper compares SparsyFed with FLASH."""
    rows = []
    for alpha in (IID, 0.1) if full else (0.1,):
        for sparsities in ((0.9, 0.85, 0.8), (0.99, 0.95, 0.9)):
            label = "/".join(f"{sparsity:g}" for sparsity in sparsities)
            choices: list[tuple[str, dict[str, Any]]] = [("sparsyfed", {}), ("topk", {})]
            if full:
                choices += [("flash", {}), ("sparsyfed", {"download": "own"}), ("flash", {"download": "own"})]
            for name, options in choices:
                method = _method(name, None, sparsities=sparsities, shares=(40, 30, 30), **options)
                place = f"{f'a={alpha:g} ' if full else ''}{name} {label}{' own models' if options else ''}"
                rows.append(Row(label=place, method=method, alpha=alpha, paper=_at_highest(method, alpha)))
    return tuple(rows)


def _at_highest(method: MethodConfig, alpha: float) -> dict[str, str]:
    """The paper's accuracy of the model at its highest target."""
    cell = find_published(("heterogeneous",), dataset="cifar10", alpha=alpha, method=method, devices=100, end="higher")
    return {} if cell is None else {"accuracy_sparsest": f"{cell.mean:.2f}"}


def vit_rows(full: bool) -> tuple[Row, ...]:
    """The paper's fine-tuning of a ViT: half of its weights zero, devices with about 60 samples each and all classes.

    The batch size, the clipping and the number of rounds are those of the reference code; the paper names none.
    """
    common: dict[str, Any] = {
        "alpha": IID,
        "batch_size": 32,
        "eval_every": 1,
        "training": TrainingConfig(optimizer="adamw", clip_norm=1.0),
    }
    if full:
        common |= {"dataset": "cub200", "model": "vit_base", "init": "vit_base.safetensors"}
    else:
        pretraining = Pretraining(
            dataset="cifar10_first", epochs=20, batch_size=64, learning_rate=1e-3, seed=PRETRAINING_SEED
        )
        common |= {"dataset": "cifar10_second", "model": "vit_tiny-4", "width": 16, "pretraining": pretraining}
    rows = []
    for epochs in (1, 3):
        for rates, spelled in (((0.01, 0.01), "0.01 fixed"), ((0.01, 0.001), "0.01 to 0.001")):
            panels = f"{epochs} epoch{'s' if epochs > 1 else ''}, {spelled}"
            for method in (_method("dense"), _method("sparsyfed", 0.5), _method("topk", 0.5)):
                name = method.name if method.sparsity is None else f"{method.name} {method.sparsity:g}"
                rows.append(
                    Row(
                        label=f"{name}, {panels}",
                        method=method,
                        learning_rates=rates,
                        epochs=epochs,
                        panels=panels,
                        **common,
                    )
                )
    return tuple(rows)


def order_rows(full: bool) -> tuple[Row, ...]:
    """What may explain whether SparsyFed or FLASH is ahead, one difference at a time.

    Settings are judged on validation samples, with the usual BatchNorm at either scale.
    """
    methods: tuple[tuple[str, dict[str, str]], ...] = (
        ("sparsyfed", {}),
        ("sparsyfed-no-act", {}),
        ("flash", {}),
        ("flash", {"zero_biases": "frozen"}),
    )
    return tuple(
        Row(
            label=f"{name}{' frozen biases' if options else ''} {sparsity:g}",
            method=_method(name, sparsity, **options),
            model="resnet18",
            validation=VALIDATION,
        )
        for sparsity in (0.95, 0.99)
        for name, options in methods
    )


def regime_rows(full: bool) -> tuple[Row, ...]:
    """The order of SparsyFed and FLASH nearer to the paper: a wider net, devices more alike, more rounds.

    At full scale it is the paper's own cell at the highest sparsity, whose steps are cheap enough for a CPU.
    """
    sparsity = 0.999 if full else 0.99
    common: dict[str, Any] = {"alpha": 1.0, "model": "resnet18", "eval_every": 50 if full else 10}
    common |= {} if full else {"width": 32, "small_rounds": 150, "validation": VALIDATION}
    methods: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("sparsyfed", "sparsyfed", {}),
        ("flash", "flash", {}),
        ("flash frozen biases", "flash", {"zero_biases": "frozen"}),
    )
    return tuple(
        Row(label=f"{label} {sparsity:g}", method=_method(name, sparsity, **options), **common)
        for label, name, options in methods
    )


def _allocations(name: str) -> tuple[tuple[str, str, dict[str, object]], ...]:
    """Other allocations of the budget over layers than one ranking of all weights."""
    return (
        ("erk", name, {"allocation": "erk"}),
        ("lamp", name, {"allocation": "lamp"}),
        ("lamp, price 0.5", name, {"allocation": "lamp", "allocation_price": 0.5}),
    )


def lever_rows(full: bool) -> tuple[Row, ...]:
    """What goes beyond the paper, each change alone against the same base; every run has the mean of its last models.

    Averaging changes no training, so one run shows its models with and without it.
    """
    changes: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("sparsyfed", "sparsyfed", {}),
        ("no activation pruning", "sparsyfed-no-act", {}),
        ("floor 0.1", "sparsyfed", {"activation_floor": 0.1}),
        ("floor 0.3", "sparsyfed", {"activation_floor": 0.3}),
        ("sparse start", "sparsyfed", {"start": "erk"}),
        ("sparse start, no activation pruning", "sparsyfed-no-act", {"start": "erk"}),
        ("flash", "flash", {}),
        ("flash, sparse start", "flash", {"start": "erk"}),
        ("saliency start", "sparsyfed", {"start": "saliency"}),
        ("saliency start, lamp", "sparsyfed", {"start": "saliency", "allocation": "lamp"}),
        ("flash, saliency start", "flash", {"start": "saliency"}),
        ("regrowth", "sparsyfed", {"regrow_every": REGROW_EVERY}),
        ("sparse start, regrowth", "sparsyfed", {"start": "erk", "regrow_every": REGROW_EVERY}),
        *_allocations("sparsyfed"),
        *((f"flash, {label}", "flash", options) for label, _, options in _allocations("flash")),
    )
    common: dict[str, Any] = {"model": "resnet18", "validation": VALIDATION, "average": AVERAGED}
    return (
        Row(label="dense", method=_method("dense"), **common),
        *(
            Row(label=f"{label} {sparsity:g}", method=_method(name, sparsity, **options), **common)
            for sparsity in (0.95, 0.99)
            for label, name, options in changes
        ),
        *_step_lever_rows(common),
    )


def _step_lever_rows(common: Mapping[str, Any]) -> Iterator[Row]:
    """Levers against skewed labels, in the loss and in the cohorts, and rounds before inputs are pruned."""
    changes: tuple[tuple[str, str, dict[str, object], float], ...] = (
        ("label shift 0.5", "sparsyfed", {}, 0.5),
        ("label shift 1", "sparsyfed", {}, 1.0),
        ("flash, label shift 1", "flash", {}, 1.0),
        ("warm-up 10", "sparsyfed", {"activation_warmup": 10}, 0.0),
        ("warm-up 30", "sparsyfed", {"activation_warmup": 30}, 0.0),
        ("warm-up 30, floor 0.1", "sparsyfed", {"activation_warmup": 30, "activation_floor": 0.1}, 0.0),
    )
    for sparsity in (0.95, 0.99):
        for label, name, options, shift in changes:
            training = TrainingConfig(label_shift=shift) if shift else None
            method = _method(name, sparsity, **options)
            yield Row(label=f"{label} {sparsity:g}", method=method, training=training, **common)
        for label, name in (("balanced cohorts", "sparsyfed"), ("flash, balanced cohorts", "flash")):
            method = _method(name, sparsity)
            yield Row(label=f"{label} {sparsity:g}", method=method, selection="balanced", **common)
    yield Row(label="dense, balanced cohorts", method=_method("dense"), selection="balanced", **common)
    yield Row(label="dense, label shift 1", method=_method("dense"), training=TrainingConfig(label_shift=1.0), **common)
