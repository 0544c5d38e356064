"""Whether a cluster is fit for a simulation: enough cores, and the same software everywhere.

What a node computes must not depend on which node it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparsyedge.edge.errors import ConfigError

__all__ = ["check_facts", "facts_function", "worker_count"]


def facts_function() -> Callable[[], dict[str, str]]:
    """A function that says what a machine runs, by name of the software.

    It runs on machines that may lack sparsyedge, so it travels as code: it is local and uses no name of this module.
    """

    def facts() -> dict[str, str]:
        import hashlib
        import platform
        from importlib import metadata, util
        from pathlib import Path

        found = {"Python": platform.python_version()}
        for package in ("ray", "sparsyedge", "numpy", "onnxruntime-training", "onnxruntime"):
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = "none"
        # Two checkouts may have the same version and different code.
        digest = hashlib.sha256()
        for package in ("edge", "benchmarks"):
            try:
                spec = util.find_spec(f"sparsyedge.{package}")
            except ModuleNotFoundError:
                spec = None
            for folder in (spec.submodule_search_locations or []) if spec else []:
                for path in sorted(Path(folder).rglob("*.py")):
                    digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
        found["sparsyedge's code"] = digest.hexdigest()[:12]
        return found

    return facts


def check_facts(node: str, found: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raise ConfigError if a machine runs something else than this one."""
    for name, version in ours.items():
        other = found.get(name, "none")
        if other != version:
            raise ConfigError(
                f"node {node} of the Ray cluster has {name} {other}, this machine {version}; install the same on every "
                f"node and start Ray there again"
            )


def worker_count(asked: int | None, slots: int, *, threads: int) -> int:
    """How many workers to start in a cluster whose cores allow `slots`; raises ConfigError if that is too few."""
    if slots == 0:
        raise ConfigError(
            f"no node of the Ray cluster has {threads} cores, as many as a worker with the run's `threads` needs"
        )
    if asked is not None and asked > slots:
        raise ConfigError(
            f"--workers has value {asked}: with `threads` = {threads} the Ray cluster's cores are enough for {slots}; "
            f"allowed are 1 to {slots}"
        )
    return asked or slots
