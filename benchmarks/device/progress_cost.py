"""What it costs a device to say what it is doing: `python -m sparsyedge.benchmarks.device.progress_cost`.

A step pays for leaving its figures and for a look at the clock; every five seconds a message goes to a real Mosquitto.
Both are measured in processor time of all threads, with the same calls that training makes.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.simulate.local_mosquitto import started_mosquitto
from sparsyedge.edge.device.job_notices import EVERY_S, JobNotices
from sparsyedge.edge.device.limits import Vitals
from sparsyedge.edge.protocol.messages import Blob, RoundTask
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["main"]

STEPS = 200_000
MESSAGES = 2_000
REPEATS = 5
STEP_MS = (0.5, 1, 10, 100)
SHA256 = "0" * 64
TASK = RoundTask(
    run="demo",
    round=7,
    rounds=20,
    state="open",
    cohort=("pi-03",),
    manifest=Blob(sha256=SHA256, bytes=1),
    model_id=SHA256,
    model=Blob(sha256=SHA256, bytes=1),
    learning_rate=0.1,
    epochs=1,
    batch_size=16,
    sparsity=0.95,
    seed=1,
    deadline_unix_s=0.0,
)


def main() -> int:
    """Measure, and print one JSON document."""
    with tempfile.TemporaryDirectory() as folder, started_mosquitto(Path(folder)) as broker:
        link = Link(broker.host, broker.port, identity="pi-03")
        link.open()
        try:
            tell = partial(link.tell, Topics("demo").progress("pi-03"))
            hook_ns = _step_ns(tell)
            message_us = _message_us(tell)
        finally:
            link.close()
    shares = {
        f"{step_ms:g} ms": 100 * (hook_ns / 1e6 + message_us / 1e3 * step_ms / (1e3 * EVERY_S)) / step_ms
        for step_ms in STEP_MS
    }
    found = {"hook_ns": hook_ns, "message_us": message_us, "percent_of_a_step": shares}
    print(json.dumps({"machine": machine(), **found}, indent=1, default=str))
    return 0


def _step_ns(tell: Callable[[bytes], bool]) -> float:
    """Processor nanoseconds of what a step does for progress, messages not counted."""
    notices = JobNotices(tell, vitals=lambda: Vitals(temperature_c=61.5), clock=time.monotonic)
    notices.begin(TASK)
    notices.note_phase("train")
    losses = [0.7] * 500
    taken = []
    for _ in range(REPEATS):
        before_s = time.process_time()
        for step in range(STEPS):
            notices.note_step(step, STEPS, losses)
            notices.poll()
        taken.append((time.process_time() - before_s) / STEPS * 1e9)
    return statistics.median(taken)


def _message_us(tell: Callable[[bytes], bool]) -> float:
    """Processor microseconds of a message, from the figures to the socket, the network thread's included."""
    now_s = 0.0
    notices = JobNotices(tell, vitals=lambda: Vitals(temperature_c=61.5), clock=lambda: now_s)
    notices.begin(TASK)
    notices.note_phase("train")
    losses = [0.7] * 500
    before_s = time.process_time()
    for step in range(MESSAGES):
        now_s += 2 * EVERY_S
        notices.note_step(step, MESSAGES, losses)
        notices.poll()
        time.sleep(0.001)  # the message before must be on its way
    return (time.process_time() - before_s) / MESSAGES * 1e6


if __name__ == "__main__":
    raise SystemExit(main())
