"""The paper's tables and figures as data: the runs they need and the columns they show.

A row quotes the paper's figure if we could check it; an empty cell means that we know of none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsyedge.benchmarks.paper.settings import Pretraining, Scale, Setting
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.model.training import TrainingConfig

__all__ = ["EXPERIMENTS", "Experiment", "Row"]

IID = 1000.0
PRETRAINING_SEED = 1337
COMPARED = ("sparsyfed", "topk", "zerofl", "flash")


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
    paper: dict[str, str] = field(default_factory=dict)
    """The paper's figures, by column."""

    def settings(
        self, scale: Scale, seeds: tuple[int, ...], *, full: bool, rounds: int | None = None
    ) -> Iterator[Setting]:
        """The row's runs; the user's number of rounds wins over the row's and the scale's."""
        if rounds is None:
            rounds = self.rounds if full and self.rounds is not None else scale.rounds[self.dataset]
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
                init=self.init,
                pretraining=self.pretraining,
            )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure: its rows at either scale, and the columns it shows from results.py."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[bool], tuple[Row, ...]]
    """The rows; the argument says whether the scale is full."""
    note: str = ""


def _method(name: str, sparsity: float | None = None, **options: object) -> MethodConfig:
    return MethodConfig(name=name, sparsity=sparsity, **options)  # type: ignore[arg-type]


def _grid(full: bool) -> tuple[Row, ...]:
    """Methods x sparsities x how alike the devices' data is."""
    datasets = ("cifar10", "cifar100", "speech_commands") if full else ("cifar10",)
    alphas = (IID, 1.0, 0.1) if full else (0.1,)
    sparsities = (0.9, 0.95, 0.99, 0.995, 0.999) if full else (0.95, 0.99)
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
                            paper=_PAPER_ACCURACY.get((dataset, alpha, name, sparsity), {}),
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


_PAPER_ACCURACY = {
    ("speech_commands", IID, "topk", 0.999): {"accuracy": "63.63"},
    ("speech_commands", IID, "topk", 0.995): {"accuracy": "36.69"},
}


def _tuned(name: str, sparsity: float, dataset: str = "cifar10", *, full: bool) -> MethodConfig:
    """A method of the paper's comparison, with its exponent for the data set; adjusted at small scale to make it train.

    ZeroFL's steps see a different net from the one it sends, which stays at chance level at that scale.
    """
    if name == "sparsyfed" and dataset == "speech_commands":
        return _method(name, sparsity, beta=1.15)
    if name == "zerofl" and not full:
        return _method(name, sparsity, inference="trained")
    return _method(name, sparsity)


def _each(names: Sequence[str], sparsities: Sequence[float] = (0.95,), **row: Any) -> tuple[Row, ...]:
    """A row for every method at every sparsity, and one for `dense`, which has no sparsity."""
    pruned = tuple(
        Row(label=f"{name} {sparsity:g}", method=_method(name, sparsity), **row)
        for sparsity in sparsities
        for name in names
        if name != "dense"
    )
    return (Row(label="dense", method=_method("dense"), **row), *pruned) if "dense" in names else pruned


def _communication(full: bool) -> tuple[Row, ...]:
    return (
        Row(label="dense", method=_method("dense"), paper={"fewer_values": "1"}),
        Row(label="sparsyfed 0.95", method=_method("sparsyfed", 0.95), paper={"fewer_values": "19.29"}),
        *(Row(label=f"{name} 0.95", method=_tuned(name, 0.95, full=full)) for name in ("topk", "zerofl", "flash")),
    )


def _reparametrisations(full: bool) -> tuple[Row, ...]:
    # The small scale's BatchNorm drowns spectral weights, which are tiny; they train only with the usual BatchNorm.
    usual = () if full else (("spectral", "spectral"), ("powerpropagation", "sparsyfed"))
    return (
        Row(label="powerpropagation", method=_method("sparsyfed", 0.95)),
        Row(label="spectral", method=_method("spectral", 0.95)),
        Row(label="exponent by max (paper)", method=_method("auto-beta", 0.95)),
        Row(label="exponent by sigma (code)", method=_method("auto-beta", 0.95, exponent="sigma")),
        Row(label="none, fixed mask", method=_method("fixed-mask", 0.95)),
        Row(label="none, top-k", method=_method("topk", 0.95)),
        *(Row(label=f"{label}, resnet18", method=_method(name, 0.95), model="resnet18") for label, name in usual),
    )


def _betas(full: bool) -> tuple[Row, ...]:
    return tuple(
        Row(label=f"beta {beta:g}", method=_method("sparsyfed", 0.95, beta=beta), rounds=500)
        for beta in ((1.05, 1.1, 1.15, 1.25, 1.5, 2.0) if full else (1.05, 1.25, 1.5))
    )


def _heterogeneous(full: bool) -> tuple[Row, ...]:
    return tuple(
        Row(
            label=f"{name} {'/'.join(f'{s:g}' for s in sparsities)}",
            method=_method(name, sparsities=sparsities, shares=(40, 30, 30)),
        )
        for sparsities in ((0.9, 0.85, 0.8), (0.99, 0.95, 0.9))
        for name in (("sparsyfed", "topk", "flash") if full else ("sparsyfed", "topk"))
    )


def _vit(full: bool) -> tuple[Row, ...]:
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


EXPERIMENTS = {
    "accuracy": Experiment(
        title="aggregated accuracy: methods, sparsities and data sets",
        columns=("accuracy", "late_accuracy", "best_accuracy", "sparsity"),
        rows=_grid,
        note="the paper's two Speech Commands figures for Top-K look swapped",
    ),
    "communication": Experiment(
        title="communication cost and regrowth",
        columns=("accuracy", "fewer_values", "fewer_bytes", "regrown_devices", "regrown_global"),
        rows=_communication,
        note="fewer values is the paper's measure: values of a dense model both ways over those exchanged",
    ),
    "iou": Experiment(
        title="overlap of the masks of consecutive rounds",
        columns=("mask_iou", "nestedness", "mask_agreement", "regrown_global"),
        rows=lambda full: tuple(Row(label=f"{name} 0.95", method=_tuned(name, 0.95, full=full)) for name in COMPARED),
    ),
    "activations": Experiment(
        title="with and without activation pruning",
        columns=("accuracy", "late_accuracy", "best_accuracy"),
        rows=lambda full: _each(("sparsyfed", "sparsyfed-no-act"), (0.9, 0.95, 0.99, 0.995) if full else (0.95, 0.99)),
    ),
    "reparametrisation": Experiment(
        title="re-parametrisations and none",
        columns=("accuracy", "late_accuracy", "mask_iou", "regrown_global"),
        rows=_reparametrisations,
    ),
    "beta": Experiment(
        title="sensitivity to the exponent",
        columns=("accuracy", "late_accuracy", "best_accuracy", "mask_iou"),
        rows=_betas,
    ),
    "naive": Experiment(
        title="Powerpropagation pruned at the end against SparsyFed",
        columns=("accuracy", "late_accuracy", "sparsity", "fewer_values"),
        rows=lambda full: _each(("sparsyfed", "naive-powerprop"), (0.9, 0.95, 0.99) if full else (0.95,)),
        note="the naive model is dense until its last round, whose accuracy is that of the pruned model",
    ),
    "heterogeneous": Experiment(
        title="devices with targets of their own: groups of 40, 30 and 30 %",
        columns=("accuracy", "late_accuracy", "accuracy_sparsest", "sparsity", "fewer_values"),
        rows=_heterogeneous,
        note="the sparsest is the last model pruned to the highest target, as devices with that one begin with it",
    ),
    "devices-1000": Experiment(
        title="1,000 devices, 10 per round",
        columns=("accuracy", "late_accuracy", "sparsity", "fewer_values"),
        rows=lambda full: _each(("dense", "sparsyfed", "topk"), devices=1000),
        note="the paper says 0.1 % participation, which would be one device; 1 % is taken",
    ),
    "vit": Experiment(
        title="a vision transformer, fine-tuned with AdamW at half its weights",
        columns=("accuracy", "late_accuracy", "loss_devices", "test_loss", "sparsity", "fewer_values"),
        rows=_vit,
        note="the paper shows this as plots without numbers; --plot draws them: losses and sparsity over rounds",
    ),
    "movement": Experiment(
        title="movement of weights",
        columns=("accuracy", "l2_global", "cosine_global", "l2_round", "cosine_round", "l2_device", "cosine_device"),
        rows=lambda full: _each(("dense", "sparsyfed", "topk"), rounds=200),
    ),
}
