"""docs/reference/configuration.md says of every key what the structs say."""

from __future__ import annotations

import re
import tomllib

import msgspec
from fixtures.repository import DOCS

from sparsyedge.coordinator.commands.configuration_page import COMMAND, fill
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.edge.config import DeviceConfig, read_section

PAGE = DOCS / "reference" / "configuration.md"


def test_the_page_is_as_the_structs_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == fill(page), f"docs/reference/configuration.md is not up to date; run `{COMMAND}`"


def test_every_key_has_a_row_with_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\S.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert all(meaning.endswith(".") for _, meaning in rows)
    keys = {field.encode_name for kind in (RunConfig, DeviceConfig) for field in msgspec.structs.fields(kind)}
    assert keys <= {key for key, _ in rows}


def test_the_examples_of_the_page_are_valid() -> None:
    run, device = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert read_section(tomllib.loads(run), RunConfig).rounds == 20
    assert read_section(tomllib.loads(device), DeviceConfig).id == "pi-07"
