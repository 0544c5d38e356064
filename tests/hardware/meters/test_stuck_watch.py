from __future__ import annotations

import pytest

from sparsyedge.hardware.meters.stuck_watch import NoReading, StuckWatch


class Hours:
    """A clock and a processor that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0
        self.watch = StuckWatch(lambda: self.now_s, cpu_seconds=lambda: self.cpu_s)

    def live(self, seconds: int, *, cores: float, watts: float) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.cpu_s += cores
            self.watch.check(watts)


def test_a_value_that_stays_the_same_idle_and_busy_is_no_reading() -> None:
    hours = Hours()
    hours.live(200, cores=0.0, watts=3.21)
    with pytest.raises(NoReading, match=r"3.21 W for \d+ s, idle and busy; it is stuck"):
        hours.live(200, cores=2.0, watts=3.21)


@pytest.mark.parametrize("cores", [0.0, 2.0])
def test_a_steady_load_may_draw_the_same_for_hours(cores: float) -> None:
    Hours().live(7200, cores=cores, watts=3.21)


def test_a_sensor_that_moves_again_is_believed_again() -> None:
    hours = Hours()
    hours.live(200, cores=0.0, watts=3.21)
    with pytest.raises(NoReading):
        hours.live(200, cores=2.0, watts=3.21)
    hours.live(200, cores=2.0, watts=3.22)
