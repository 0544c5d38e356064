"""One measured run of the peer: Mosquitto, publishing devices, and a subscriber that throws everything away."""

from __future__ import annotations

import time
from pathlib import Path

from sparsyedge.benchmarks.rounds.crew import started
from sparsyedge.benchmarks.rounds.figures import PeerFigures
from sparsyedge.benchmarks.rounds.measure import FLEET, Plan, RunResult, broker_pid, jobs_of
from sparsyedge.benchmarks.rounds.peer import SUBSCRIBERS, Consumption, PeerJob, publish_host
from sparsyedge.benchmarks.rounds.usage import cpu_s, watched
from sparsyedge.benchmarks.simulate.local_mosquitto import started_mosquitto
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.plan import plan_of
from sparsyedge.edge.model.artifacts import Artifacts

__all__ = ["measure_peer"]


def measure_peer(
    plan: Plan, ours: RunResult, artifacts: Path, frames: Path, scratch: Path, *, subscriber: str
) -> PeerFigures:
    """Publish the updates of our run, which are in `frames`, to one subscriber."""
    subscribe, description = SUBSCRIBERS[subscriber]
    with started_mosquitto(scratch) as broker:
        jobs = jobs_of(plan, artifacts, broker.port)
        at_a_time = max(1, _upload_bytes(artifacts) // int(ours.figures.update_bytes))
        peer_jobs = [
            PeerJob(
                job=job,
                chunk_bytes=ours.chunk_bytes,
                at_a_time=max(1, at_a_time * job.count // plan.devices),
                frames=str(frames),
            )
            for job in jobs
        ]
        expected = Consumption(
            port=broker.port, fleet=FLEET, devices=plan.devices, chunks=ours.chunks, folder=str(scratch)
        )
        with started(subscribe, [expected]) as taker, started(publish_host, peer_jobs) as publishers:
            for crew in (taker, publishers):
                crew.say("join")
                crew.await_all("ready", limit_s=plan.limit_s)
            mosquitto = broker_pid()
            with watched(mosquitto) as (peaks,):
                before_s, go_unix_s = cpu_s(mosquitto), time.time()
                publishers.say("go")
                (done,) = taker.await_all("done", limit_s=plan.limit_s)
                used_s = cpu_s(mosquitto) - before_s
    seconds = done.at_unix_s - go_unix_s
    return PeerFigures(
        subscriber=description,
        seconds=round(seconds, 3),
        updates_per_s=round(plan.devices / seconds, 2),
        mb_per_s=round(done.traffic[3] / seconds / 1e6, 2),
        broker_cpu_s_per_update=round(used_s / plan.devices, 6),
        broker_mb=round(peaks.sum_mb, 2),
    )


def _upload_bytes(artifacts: Path) -> int:
    """How many bytes a coordinator lets devices upload at a time."""
    config = RunConfig(name="peer", artifacts=str(artifacts), run_dir="peer", dataset="digits", rounds=1, cohort_size=1)
    return plan_of(config, Artifacts.load(artifacts).manifest, first_round=1).upload_bytes
