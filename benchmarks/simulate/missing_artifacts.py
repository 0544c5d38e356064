"""Finds the artifacts of a simulation, or exports them as the config says."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig
from sparsyedge.edge.data import Dataset, form_of
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, Manifest
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.edge.model.training import TrainingConfig, training_of
from sparsyedge.export.model_spec import ModelChoices, ModelSpec, plain_name

__all__ = ["ensure_artifacts"]


def ensure_artifacts(config: SimulatedRunConfig, dataset: Dataset) -> Artifacts:
    """The run's artifacts; exports them for the data set if there are none.

    Raises ConfigError if the artifacts on disk do not match the config.
    """
    directory = config.artifacts_path
    wanted = config.simulation.export if config.simulation else None
    if wanted is not None and not (directory / MANIFEST_NAME).is_file():
        try:
            return _export(config, wanted, dataset)
        except ConfigError:
            # Another run with the same folder may have been faster; use its artifacts if they match.
            if not (directory / MANIFEST_NAME).is_file():
                raise
    artifacts = Artifacts.load(directory)
    if wanted is not None:
        _compare(artifacts.manifest, wanted, str(directory))
    return artifacts


def _export(config: SimulatedRunConfig, wanted: ExportConfig, dataset: Dataset) -> Artifacts:
    # Imported here: simulating with existing artifacts needs no torch.
    from sparsyedge.export.checked_build import export_model
    from sparsyedge.export.models import model_for

    spec = ModelSpec.for_data(wanted.model or model_for(config.dataset), wanted.width, form_of(dataset))
    method = method_of(config.method or MethodConfig())
    training = training_of(config.training or TrainingConfig())
    artifacts, _ = export_model(
        spec, method, config.artifacts_path, seed=wanted.seed, training=training, choices=_choices(wanted)
    )
    return artifacts


def _choices(wanted: ExportConfig) -> ModelChoices:
    init = Path(wanted.init) if wanted.init is not None else None
    return ModelChoices(wanted.arguments, init, wanted.train, wanted.prunable)


def _compare(manifest: Manifest, wanted: ExportConfig, directory: str) -> None:
    try:
        choices = _choices(wanted).stated()
    except OSError as error:
        raise ConfigError(
            f"key `simulation.export.init` names {wanted.init}, which cannot be read ({error.strerror}) to compare it "
            f"with what the artifacts in {directory} began with; put it back, or leave out [simulation.export]"
        ) from error
    made = manifest.choices
    model = plain_name(wanted.model or manifest.model)
    # Key, what was asked for, whether the artifacts have it, and what they have.
    facts: list[tuple[str, object, bool, str]] = [
        ("model", model, manifest.model == model, repr(manifest.model)),
        ("width", wanted.width, manifest.width == wanted.width, repr(manifest.width)),
        ("seed", wanted.seed, manifest.seed == wanted.seed, repr(manifest.seed)),
        ("arguments", wanted.arguments, made.arguments == choices.arguments, "others" if made.arguments else "none"),
        ("init", wanted.init, made.init == choices.init, "other weights" if made.init else "random weights"),
        ("train", wanted.train, made.train == choices.train, repr(made.train)),
        ("prunable", wanted.prunable, made.prunable == choices.prunable, repr(made.prunable)),
    ]
    for key, asked, same, found in facts:
        if not same:
            raise ConfigError(
                f"key `simulation.export.{key}` has value {asked!r}, the artifacts in {directory} were made with "
                f"{found}; name another folder in `artifacts`, or remove this one"
            )
