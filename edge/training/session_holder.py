"""A device's training state: the artifacts of its run, and the one session open on them."""

from __future__ import annotations

import logging
import threading

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.heap import give_back
from sparsyedge.edge.model.artifacts import STOCK_ROLES, TRAINING_ROLES, Artifacts, FileRole
from sparsyedge.edge.model.checkpoint import open_initial_state
from sparsyedge.edge.tensors import Tensors
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.onnx_runtime import pick_runtime
from sparsyedge.edge.training.session import Runtime, Session, choose_kind, remaining_work
from sparsyedge.edge.training.sparse_session import SparseSession

__all__ = ["SessionHolder"]

log = logging.getLogger(__name__)


class SessionHolder:
    """Belongs to one device, or to several simulated ones that hold `lock` while they train."""

    def __init__(self, *, threads: int = 1, runtime: Runtime | None = None, rests: bool = False) -> None:
        """`runtime` defaults to what is installed and exported; raises ConfigError if a given one is not installed.

        One that `rests` gives back the memory of its session when `rest` is called, which the next round opens anew.
        """
        self.lock = threading.Lock()
        self._forced = runtime
        self._runtime = pick_runtime(runtime)
        self._threads = threads
        self._rests = rests
        self._manifest_sha256: str | None = None
        self._artifacts: Artifacts | None = None
        self._session: Session | None = None

    @property
    def runtime(self) -> Runtime:
        """What trains: onnxruntime-training's API, or any onnxruntime."""
        return self._runtime

    @property
    def roles(self) -> tuple[FileRole, ...]:
        """The files that this device fetches, as far as the export has them."""
        return TRAINING_ROLES if self._runtime == "training" else STOCK_ROLES

    def artifacts(self, manifest_sha256: str) -> Artifacts | None:
        """The current artifacts, if they belong to this manifest."""
        return self._artifacts if self._manifest_sha256 == manifest_sha256 else None

    def put(self, artifacts: Artifacts, manifest_sha256: str) -> None:
        """Use these artifacts from now on; raises ConfigError if they lack the files of the given runtime."""
        if self._forced == "training" and not artifacts.manifest.has_api_files:
            raise ConfigError(
                "--runtime training needs the files of onnxruntime-training, and the run's artifacts were exported "
                "without it; leave the option out, or export again with Python 3.11 on x86-64 Linux"
            )
        self._session = None
        self._artifacts, self._manifest_sha256 = artifacts, manifest_sha256

    def session(self, model: Tensors | None, *, round_number: int) -> Session:
        """A session of the right kind that holds the model; None means the checkpoint's model."""
        artifacts = self._artifacts
        assert artifacts is not None, "put artifacts here first"
        if model is None and self._runtime == "training" and artifacts.manifest.has_api_files:
            # A fresh session starts from the checkpoint's model; a used one has trained since.
            self._session = None
            self._session = DenseSession(artifacts, threads=self._threads)
            return self._session
        if model is None:
            model = open_initial_state(artifacts)
        manifest = artifacts.manifest
        kind = choose_kind(manifest, model, self._runtime)
        log.info(
            "round %d: %.1f %% of the work is left; %s graph", round_number, 100 * remaining_work(manifest, model), kind
        )
        if self._session is None or self._session.kind != kind:
            # One at a time: the dense session alone holds several copies of the model.
            self._session = None
            self._session = (SparseSession if kind == "sparse" else DenseSession)(artifacts, threads=self._threads)
        self._session.load(model)
        if self._rests:
            # What plans were made from, which is several times what is left of it.
            give_back()
        return self._session

    def rest(self) -> None:
        """Say that nobody trains until the next `session`."""
        if self._rests and self._session is not None:
            self._session.rest()
            give_back()
