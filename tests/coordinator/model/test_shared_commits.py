"""A coordinator that dies while several updates become durable together: they all count, or none does."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.faults import CRASH_VARIABLE, EXIT_CODE

FRAMES = {"d1": b"first frame", "d2": b"second frame"}

WRITER = f"""
import hashlib, sys
from pathlib import Path
from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.store import AcceptedUpdate, Store
from sparsyedge.edge.protocol.messages import Report

folder = Path(sys.argv[1])
store, files = Store.open(folder), UpdateFiles(folder)
store.before_commit = files.sync
store.hold()
files.begin(1, end=store.end_of_frames(1))
report = Report(run="r", round=1, phases={{}}, energy_source="none", energy_kind="none", bytes_down=0, bytes_up=0,
                steps=1, loss=0.5, peak_rss_mb=1.0, pid=1)
for device, frame in {FRAMES!r}.items():
    sha256, position = hashlib.sha256(frame).hexdigest(), files.save(frame)
    update = AcceptedUpdate(round=1, device=device, samples=1, sha256=sha256, bytes=len(frame), position=position,
                            nonzeros=1)
    store.accept_update(update, report)
store.commit()
print("acknowledged", flush=True)
"""


@pytest.mark.parametrize(
    ("point", "recorded"),
    [("half-written:3", False), ("before-sync", False), ("before-commit", False), ("after-commit", True)],
)
def test_updates_that_share_a_commit_count_together_or_not_at_all(tmp_path: Path, point: str, recorded: bool) -> None:
    Store.create(tmp_path, name="r", fleet="f", rounds=1, dense_bytes=1, config="{}").close()
    environment = {**os.environ, CRASH_VARIABLE: point}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    died = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (died.returncode, died.stdout) == (EXIT_CODE, ""), died.stderr
    files = UpdateFiles(tmp_path)
    with closing(Store.open(tmp_path)) as store:
        kept = store.kept_updates(1, tuple(FRAMES))
        assert set(kept) == (set(FRAMES) if recorded else set())
        for device, update in kept.items():
            assert files.load(1, position=update.position, size=update.bytes) == FRAMES[device]
        files.begin(1, end=store.end_of_frames(1))
        assert files.path(1).stat().st_size == sum(update.bytes for update in kept.values())
        files.close()
