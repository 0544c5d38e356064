"""The exported graphs on disk, and the manifest that describes them; both are checked before anything runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.compatibility import OURS, Features, Span, missing_feature, own_software
from sparsyedge.edge.data.dataset import AXES, MAX_CLASS_NAME, Task
from sparsyedge.edge.data.form import Form, SampleType
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.training import OPTIMIZER_STEPS, PLAIN_SGD, Training
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.storage import sha256_file, write_atomically

__all__ = [
    "API_ROLES",
    "DEFAULT_MAX_EPOCHS",
    "IMAGE_AXES",
    "LAST_WITH_API_FILES",
    "MANIFEST_NAME",
    "MANIFEST_VERSION",
    "PLAIN_ROLES",
    "STOCK_ROLES",
    "TRAINING_ROLES",
    "Artifacts",
    "BatchNorm",
    "ClassName",
    "File",
    "FileRole",
    "Manifest",
    "Method",
    "OpLibrary",
    "Parameter",
    "StatedChoices",
    "amend_manifest",
    "decode_manifest",
    "encode_manifest",
    "needed_features",
]

MANIFEST_VERSION = OURS.manifest.newest
LAST_WITH_API_FILES = 5
"""The last manifest version in which every export has the files of onnxruntime-training."""
MANIFEST_NAME = "manifest.json"
UPGRADE = "upgrade sparsyedge on this machine, or run `sparsyedge export` again with"

FileRole = Literal["training", "eval", "optimizer", "checkpoint", "inference", "sparse_plan", "sparse_step", "skeleton"]
API_ROLES: tuple[FileRole, ...] = ("training", "eval", "optimizer")
"""The files of onnxruntime-training's API; an export has all of them or, where that is not installed, none."""
PLAIN_ROLES: tuple[FileRole, ...] = ("sparse_plan", "sparse_step")
"""The training step in our own ops alone; any onnxruntime runs it."""
STOCK_ROLES: tuple[FileRole, ...] = ("checkpoint", *PLAIN_ROLES)
"""All files that a device without a training API needs."""
TRAINING_ROLES: tuple[FileRole, ...] = (*API_ROLES, *STOCK_ROLES)
"""All files that a device with a training API can use to train."""
REQUIRED_ROLES: tuple[FileRole, ...] = (*STOCK_ROLES, "inference")
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
# A name in the manifest becomes a path on the device: allow only plain file names, never a way out of the folder.
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]
Positive = Annotated[int, msgspec.Meta(ge=1)]
MAX_FILE_BYTES = 1 << 30
MAX_FILES = 32
Role = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,39}\Z")]
"""A FileRole, or one from a later version: devices fetch only the roles they know, coordinators offer all."""
DEFAULT_MAX_EPOCHS = 1000
ClassName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CLASS_NAME)]
SampleShape = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=min(AXES), max_length=max(AXES))]
IMAGE_AXES = 3
"""Channels, height, width: all that a device without the feature `sample-shapes` knows."""


class File(msgspec.Struct, frozen=True):
    """One file of the artifacts."""

    name: FileName
    sha256: Sha256
    bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]


class Parameter(msgspec.Struct, frozen=True):
    """One named tensor of the state, BatchNorm's running statistics included; those are not trainable."""

    name: str
    shape: tuple[Positive, ...]
    trainable: bool
    prunable: bool
    positions: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Positions of the layer's output plane where a prunable weight applies; 0 for every other parameter."""
    frozen: bool | UnsetType = UNSET
    """True for what no step changes: neither trained nor a statistic. Written only there."""


class BatchNorm(msgspec.Struct, frozen=True):
    """The names of a BatchNorm layer's running statistics, and of the graph outputs with their new values."""

    mean: str
    variance: str
    mean_output: str
    variance_output: str
    plane: Positive
    """Positions per sample (height x width) that the statistics cover."""


class OpLibrary(msgspec.Struct, frozen=True):
    """An op library that devices may run the graphs with."""

    platform: Annotated[str, msgspec.Meta(max_length=64)]
    """For people; devices check the hash."""
    sha256: Sha256


class StatedChoices(msgspec.Struct, frozen=True):
    """What an export was asked for beyond model and method; for whoever exports again, not for devices."""

    arguments: Sha256 | None = None
    """The hash of the arguments for a user's own module: they may name folders of the machine that exported."""
    init: Sha256 | None = None
    """The hash of the file of weights that the model began with."""
    train: str = "all"
    prunable: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """Everything a device must know about the artifacts before it loads one of them.

    Readers ignore undeclared fields, as in a message: docs/reference/protocol.md, "Versions".
    """

    version: int
    ops_abi: int
    model: str
    width: Positive
    classes: Positive
    """The number of classes; in a regression, of outputs."""
    input_shape: SampleShape
    """Of one sample; edge/data/dataset.py names the axes."""
    method: Method
    seed: int
    opset: int
    made_with: dict[str, str]
    """The versions of the libraries that made the graphs."""
    parameters: tuple[Parameter, ...]
    batch_norms: tuple[BatchNorm, ...]
    batch_norm_momentum: float
    """The weight of the old running value (torch's momentum is one minus this)."""
    initial_model: Sha256
    """The model id of the checkpoint's state."""
    files: Annotated[dict[Role, File], msgspec.Meta(max_length=MAX_FILES)]
    class_names: tuple[ClassName, ...] = ()
    """The names of the classes in the order of their numbers, or of the outputs; empty if they have none."""
    sample_type: SampleType = "uint8"
    """How the model's data is stored, which decides its scaling; the delivered model scales the same way."""
    op_libraries: tuple[OpLibrary, ...] = ()
    """The op libraries that devices may run the graphs with; set by signing."""
    max_epochs: Positive = DEFAULT_MAX_EPOCHS
    """The most epochs that devices of a secured fleet train in one round, whatever a task asks for; set by signing."""
    needs: Features | UnsetType = UNSET
    """The features that a user of the artifacts must have; a reader without one of them refuses the manifest."""
    stated_training: Training | UnsetType = msgspec.field(default=UNSET, name="training")
    """How devices take a step, if other than by plain SGD; needs a feature (training.py)."""

    stated_choices: StatedChoices | UnsetType = msgspec.field(default=UNSET, name="choices")
    """Written only if one of them is not the default. It does not count for `Artifacts.id`, as earlier releases do not
    know it."""

    @property
    def choices(self) -> StatedChoices:
        """What the export was asked for beyond model and method."""
        return self.stated_choices or StatedChoices()

    @property
    def training(self) -> Training:
        """How devices take a step."""
        return self.stated_training or PLAIN_SGD

    task: Task = "classes"
    """Written only where it is another: devices without the feature `regression` know no other."""

    @property
    def outputs(self) -> int:
        """How many numbers the model gives per sample: one for each class, or for each target."""
        return self.classes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of the state, by name."""
        return {parameter.name: parameter.shape for parameter in self.parameters}

    @property
    def optimizer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of everything that the optimizer remembers, by name; empty for plain SGD."""
        shapes: dict[str, tuple[int, ...]] = {
            f"{parameter.name}{suffix}": parameter.shape
            for parameter in self.parameters
            for suffix in self.training.state_suffixes
            if parameter.trainable
        }
        return shapes | ({OPTIMIZER_STEPS: (1,)} if self.training.counts_steps else {})

    @property
    def form(self) -> Form:
        """The form of the model's data."""
        return Form(self.input_shape, self.classes, self.class_names, self.sample_type, self.task)

    @property
    def has_api_files(self) -> bool:
        """Whether onnxruntime-training's API can train the model; any onnxruntime can train the plain graph."""
        return "training" in self.files

    @property
    def template_role(self) -> FileRole:
        """The file that a model for predictions is made from: in exports of before 0.4, the whole inference graph."""
        return "skeleton" if "skeleton" in self.files else "inference"

    @property
    def frozen(self) -> tuple[str, ...]:
        """The names of what every model of a run has in common, in table order."""
        return tuple(parameter.name for parameter in self.parameters if parameter.frozen is True)

    @property
    def prunable(self) -> tuple[str, ...]:
        """The names of the prunable weights, in table order."""
        return tuple(parameter.name for parameter in self.parameters if parameter.prunable)

    @property
    def positions(self) -> dict[str, int]:
        """How many positions of a sample's output plane each prunable weight applies to, by its layer's name."""
        return {parameter.name: parameter.positions for parameter in self.parameters if parameter.prunable}


@dataclass(frozen=True)
class Artifacts:
    """A folder with a parsed manifest and files that match it."""

    directory: Path
    manifest: Manifest

    @classmethod
    def load(cls, directory: Path) -> Artifacts:
        """Read the manifest and compare every file's hash; raises ArtifactError at the first difference."""
        path = directory / MANIFEST_NAME
        if not path.is_file():
            raise ArtifactError(
                f"no {MANIFEST_NAME} in {directory}; make artifacts there with `sparsyedge export --out {directory}`"
            )
        manifest = decode_manifest(path.read_bytes(), source=str(path))
        for file in manifest.files.values():
            _check_file(directory / file.name, file)
        return cls(directory, manifest)

    @property
    def id(self) -> str:
        """A hash of everything that affects training; signing does not change it.

        Optional fields added to the manifest later do not affect training, so the hash leaves them out as well.
        """
        unsigned = msgspec.structs.replace(
            self.manifest, op_libraries=(), max_epochs=DEFAULT_MAX_EPOCHS, stated_choices=UNSET
        )
        return hashlib.sha256(encode_manifest(unsigned)).hexdigest()

    def path(self, role: FileRole) -> Path:
        """The path of the file with that role."""
        return self.directory / self.manifest.files[role].name

    def save_manifest(self) -> None:
        """Write the manifest beside its files; the folder is invalid until then."""
        write_atomically(self.directory / MANIFEST_NAME, encode_manifest(self.manifest))


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON: people read it too."""
    fields = msgspec.to_builtins(manifest)
    if manifest.task == "classes":
        del fields["task"]
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def needed_features(input_shape: tuple[int, ...], task: Task) -> Features:
    """What a device must have to train on such samples, for the manifest's `needs`."""
    needed = ("regression",) if task == "regression" else ()
    return needed + (("sample-shapes",) if len(input_shape) != IMAGE_AXES else ())


def amend_manifest(content: bytes, **changes: Any) -> bytes:
    """Change some fields of a manifest; keeps unknown fields from later versions."""
    fields = msgspec.json.decode(content, type=dict[str, Any])
    fields.update(msgspec.to_builtins(changes))
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def decode_manifest(content: bytes, *, source: str) -> Manifest:
    """Parse a manifest and refuse other versions; errors call it `source`."""
    try:
        versions = msgspec.json.decode(content, type=_Versions)
    # Invalid UTF-8 and very deep nesting raise their own errors.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{source} is not a manifest: {error}; run `sparsyedge export` again") from error
    _require_readable(versions, source)
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise ArtifactError(f"{source} is not a valid manifest: {error}; run `sparsyedge export` again") from error
    _require_files(manifest, source)
    _check_names(manifest, source)
    return manifest


def _check_names(manifest: Manifest, source: str) -> None:
    names = manifest.class_names
    one, many = ("class", "classes") if manifest.task == "classes" else ("output", "outputs")
    # Names go into logs and refusals: they must not move a cursor or begin a line.
    if names and (len(set(names)) != manifest.classes or not all(map(str.isprintable, names))):
        raise ArtifactError(
            f"{source} has {len(names)} class names for {manifest.classes} {many}; each {one} has a name of its own, "
            f"of printable characters: run `sparsyedge export` again"
        )


def _require_files(manifest: Manifest, source: str) -> None:
    by_api = manifest.version <= LAST_WITH_API_FILES or any(role in manifest.files for role in API_ROLES)
    required = (*API_ROLES, *REQUIRED_ROLES) if by_api else REQUIRED_ROLES
    missing = [role for role in required if role not in manifest.files]
    if missing:
        raise ArtifactError(f"{source} names no {missing[0]} file; run `sparsyedge export` again")


class _Versions(msgspec.Struct):
    """The keys that decide whether we can read the rest at all."""

    version: int
    ops_abi: int
    needs: Features = ()


def _require_readable(found: _Versions, source: str) -> None:
    """Raise ArtifactError if this sparsyedge is too new or too old, with the next move: export again, or upgrade."""
    abi = Span(ABI_VERSION, ABI_VERSION)
    if found.version not in OURS.manifest:
        raise ArtifactError(
            f"{source} has manifest version {found.version}, this sparsyedge reads version {OURS.manifest}; "
            f"{_next_move(found.version, OURS.manifest)}"
        )
    if found.ops_abi not in abi:
        raise ArtifactError(
            f"{source} needs op library ABI {found.ops_abi}, this sparsyedge has ABI {abi}; "
            f"{_next_move(found.ops_abi, abi)}"
        )
    if missing := missing_feature(found.needs, OURS.features):
        raise ArtifactError(
            f"{source} needs {missing}, which this sparsyedge does not have; {UPGRADE} {own_software()}"
        )


def _next_move(found: int, allowed: Span) -> str:
    if found < allowed.oldest:
        return f"it was made by an older one: run `sparsyedge export` again with {own_software()}"
    return f"{UPGRADE} {own_software()}"


def _check_file(path: Path, expected: File) -> None:
    if not path.is_file():
        raise ArtifactError(
            f"{path} is missing though the manifest names it; run `sparsyedge export` again or copy the whole folder"
        )
    found = sha256_file(path)
    if found != expected.sha256:
        raise ArtifactError(
            f"{path} has SHA-256 {found[:12]}..., the manifest says {expected.sha256[:12]}...; "
            f"the file was altered or cut: copy the folder again or run `sparsyedge export` again"
        )
