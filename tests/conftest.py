"""Fixtures that the tests of several folders share."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Before numpy and torch are loaded: their threads spin while they wait, which two workers on two cores pay for.
for libraries in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(libraries, "1")

# `make test-device` sets it. Without it a test that cannot import torch fails, as it should.
DEVICE_ONLY = os.environ.get("SPARSYEDGE_TEST_INSTALL") == "device"

# How long an example takes says how busy the machine is.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

pytest_plugins = [
    "fixtures.broker",
    "fixtures.fake_coordinator",
    "fixtures.secured",
    "fixtures.nats",
    "fixtures.multicast",
    "fixtures.tiers",
    "fixtures.two_hosts",
    "fixtures.web_server",
    # Last, since its fixtures replace others.
    *(["fixtures.device_install"] if DEVICE_ONLY else ["fixtures.artifacts", "fixtures.stock_runtime"]),
]


def pytest_configure() -> None:
    """Let commands under test hear Ctrl-C: a shell ignores it for `make test &`, and children inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Start every test with what we log at `info`: a command that an earlier one ran has set a level of its own."""
    ours = logging.getLogger("sparsyedge")
    ours.setLevel(logging.INFO)
    yield
    ours.setLevel(logging.INFO)
