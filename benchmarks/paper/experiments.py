"""The paper's tables and figures as data: the runs they need, the columns they show, and the paper's own cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sparsyedge.benchmarks.paper.published import Published, find_published
from sparsyedge.benchmarks.paper.rows import (
    SPARSITIES,
    Row,
    accuracy_rows,
    at_alphas,
    beta_rows,
    communication_rows,
    each,
    global_sparsity_rows,
    heterogeneous_rows,
    layer_rows,
    lever_rows,
    mask_rows,
    movement_rows,
    order_rows,
    regime_rows,
    reparametrisation_rows,
    vit_rows,
)

__all__ = ["EXPERIMENTS", "Experiment", "Row"]

MAIN_TABLES = ("main", "full a=1000", "full a=1", "full a=0.1")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure: its rows at either scale, and the columns it shows from results.py."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[bool], tuple[Row, ...]]
    """The rows; the argument says whether the scale is full."""
    note: str = ""
    bases: tuple[str, ...] = ()
    """The rows, without their sparsity, that all others are compared with; none: SparsyFed is, with all others."""
    published: tuple[str, ...] = ()
    """The paper's tables of this experiment; its main tables have the cells that these lack."""
    drawing: Literal["curves", "exchange", "overlap", "layers"] = "curves"
    """What --plot draws: figures over rounds, accuracy against values exchanged, masks of all pairs of rounds, or
    layers (drawings.py)."""

    def published_cell(self, row: Row) -> Published | None:
        """The paper's accuracy for a row; None if it prints none."""
        return find_published(
            (*self.published, *MAIN_TABLES),
            dataset=row.dataset,
            alpha=row.alpha,
            method=row.method,
            devices=row.devices,
        )


EXPERIMENTS = {
    "accuracy": Experiment(
        title="aggregated accuracy: methods, sparsities and data sets",
        columns=("accuracy", "late_accuracy", "best_accuracy", "sparsity"),
        rows=accuracy_rows,
        note="the paper's two Speech Commands figures for Top-K look swapped",
    ),
    "communication": Experiment(
        title="communication cost and regrowth",
        columns=("accuracy", "fewer_values", "fewer_bytes", "regrown_devices", "regrown_global"),
        rows=communication_rows,
        drawing="exchange",
        note="fewer values is the paper's measure: values of a dense model both ways over those exchanged; it prints "
        "SparsyFed's, and those of ZeroFL and FLASH as ratios to it",
    ),
    "iou": Experiment(
        title="overlap of the masks of consecutive rounds",
        columns=("mask_iou", "nestedness", "mask_agreement", "regrown_global"),
        rows=mask_rows,
        drawing="overlap",
        note="--plot draws the overlap of all pairs of rounds, of the first seed",
    ),
    "activations": Experiment(
        title="with and without activation pruning",
        columns=("accuracy", "late_accuracy", "best_accuracy"),
        rows=lambda full: at_alphas(full, ("sparsyfed", "sparsyfed-no-act"), SPARSITIES if full else (0.95, 0.99)),
        published=("activations",),
    ),
    "reparametrisation": Experiment(
        title="re-parametrisations and none",
        columns=("accuracy", "late_accuracy", "mask_iou", "regrown_global"),
        rows=reparametrisation_rows,
    ),
    "beta": Experiment(
        title="sensitivity to the exponent",
        columns=("accuracy", "late_accuracy", "best_accuracy", "mask_iou"),
        rows=beta_rows,
    ),
    "naive": Experiment(
        title="Powerpropagation pruned at the end against SparsyFed",
        columns=("accuracy", "late_accuracy", "sparsity", "fewer_values"),
        rows=lambda full: at_alphas(full, ("sparsyfed", "naive-powerprop"), (0.0, *SPARSITIES) if full else (0.95,)),
        published=("naive",),
        note="the naive model is dense until its last round, whose accuracy is that of the pruned model",
    ),
    "heterogeneous": Experiment(
        title="devices with targets of their own: groups of 40, 30 and 30 %",
        columns=("accuracy", "late_accuracy", "accuracy_sparsest", "sparsity", "fewer_values"),
        rows=heterogeneous_rows,
        published=("heterogeneous",),
        note="the sparsest is the last model pruned to the highest target, as devices with that one begin with it",
    ),
    "order": Experiment(
        title="SparsyFed and FLASH: activation pruning, frozen biases",
        columns=("late_accuracy", "final_test_accuracy", "best_accuracy", "sparsity", "fewer_bytes"),
        rows=order_rows,
        note="late and best accuracies are those of validation samples; the test part is used once, after the last "
        "round",
    ),
    "regime": Experiment(
        title="SparsyFed and FLASH nearer to the paper's regime",
        columns=("accuracy", "late_accuracy", "final_test_accuracy", "sparsity", "fewer_bytes"),
        rows=regime_rows,
        note="at the small scale width 32 and 150 rounds, judged by validation samples; at full scale the paper's cell "
        "at 99.9 %",
    ),
    "sparsity": Experiment(
        title="sparsity of the global model over rounds",
        columns=("accuracy", "sparsity", "nestedness", "mask_agreement"),
        rows=global_sparsity_rows,
        note="--plot draws it round by round; the paper shows this as a plot without numbers",
    ),
    "layers": Experiment(
        title="sparsity by layer at 60 %",
        columns=("accuracy", "sparsity", "mask_iou"),
        rows=layer_rows,
        drawing="layers",
        note="`layer_sparsity` of each document has the layers, and --plot draws them; the paper shows some as a plot",
    ),
    "levers": Experiment(
        title="beyond the paper: one change at a time",
        columns=("late_single_accuracy", "late_accuracy", "final_test_accuracy", "multiply_adds", "fewer_bytes"),
        rows=lever_rows,
        bases=("sparsyfed", "flash"),
        note="late: mean over the last half of the rounds, on validation samples, of each round's own model (single) "
        "and of the mean of the last ten; final: that mean after the last round, on the test part",
    ),
    "devices-1000": Experiment(
        title="1,000 devices, 10 per round",
        columns=("accuracy", "late_accuracy", "sparsity", "fewer_values"),
        rows=lambda full: each(("dense", "sparsyfed", "flash"), devices=1000),
        published=("devices-1000",),
        note="the paper says 0.1 % participation, which would be one device; 1 % is taken",
    ),
    "vit": Experiment(
        title="a vision transformer, fine-tuned with AdamW at half its weights",
        columns=("accuracy", "late_accuracy", "loss_devices", "test_loss", "sparsity", "fewer_values"),
        rows=vit_rows,
        note="the paper shows this as plots without numbers; --plot draws them: losses and sparsity over rounds",
    ),
    "movement": Experiment(
        title="movement of weights",
        columns=("accuracy", "l2_global", "cosine_global", "l2_round", "cosine_round", "cosine_device", "cosine_pairs"),
        rows=movement_rows,
        note="cosine pairs: between the updates of two devices, as the paper measures; cosine device: between the "
        "model before the round and an update",
    ),
}
