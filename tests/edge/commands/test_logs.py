"""What commands say on stderr while they work."""

from __future__ import annotations

import re
import subprocess
import sys

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"

# onnxruntime-training sets logging up when it is imported; so does this, on every Python.
SCRIPT = """
import logging, sys
logging.basicConfig(format="%(name)s says %(message)s")
from sparsyedge.edge.commands import logs
logs.set_up()
logs.set_level("info")
log = logging.getLogger("sparsyedge.edge.test")
log.info("joined")
logs.name_lines("pi-100%")
log.warning("hot")
log.debug("not yet")
logs.be_verbose()
logs.set_level("info")
log.debug("now")
logging.basicConfig(format="%(name)s says %(message)s")
logging.getLogger("another").info("nobody asked")
logging.getLogger("another").warning("careful")
"""


def test_every_line_has_one_format_whoever_set_logging_up_before() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    expected = ["INFO joined", "WARNING pi-100% hot", "DEBUG pi-100% now", "WARNING pi-100% careful"]
    assert [re.sub(rf"^{STAMP} ", "", line) for line in lines] == expected


def test_a_device_logs_although_its_runtime_sets_logging_up_first() -> None:
    script = """
import logging, sparsyedge.edge.training.onnx_runtime
from sparsyedge.edge.commands import logs
logs.set_up()
logs.set_level("info")
logging.getLogger("sparsyedge.edge.commands.edge_command").info("joined")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert re.search(rf"^{STAMP} INFO joined$", done.stderr, re.M), done.stderr
