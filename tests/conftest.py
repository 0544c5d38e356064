"""Fixtures that the tests of several folders share."""

pytest_plugins = [
    "fixtures.artifacts",
    "fixtures.broker",
    "fixtures.fake_coordinator",
    "fixtures.secured",
    "fixtures.stock_runtime",
]
