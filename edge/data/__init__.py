"""A device's training data: data sets by name, their partition over devices, and the order of batches."""

from sparsyedge.edge.data.batches import epoch_order, split_batches
from sparsyedge.edge.data.checks import check, check_classes
from sparsyedge.edge.data.dataset import Dataset, Labels, Samples, Task
from sparsyedge.edge.data.form import Form, form_of
from sparsyedge.edge.data.loaders import DATASETS, KnownDataset, load
from sparsyedge.edge.data.partition import lda_partition, share_out

__all__ = [
    "DATASETS",
    "Dataset",
    "Form",
    "KnownDataset",
    "Labels",
    "Samples",
    "Task",
    "check",
    "check_classes",
    "epoch_order",
    "form_of",
    "lda_partition",
    "load",
    "share_out",
    "split_batches",
]
