"""Hints that name a command which works: sparsyedge is on no package index."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from fixtures.repository import REPOSITORY

from sparsyedge.edge.installation import checkout, install_command, installed_wheel


@pytest.fixture
def pip_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))


@pytest.fixture
def install_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Puts the record of another installation of sparsyedge before ours, with what pip would have written into it."""

    def install(origin: object) -> None:
        record = tmp_path / "site" / "sparsyedge-0.1.0.dist-info"
        record.mkdir(parents=True)
        (record / "METADATA").write_text(metadata.distribution("sparsyedge").read_text("METADATA") or "")
        if origin is not None:
            (record / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
        monkeypatch.syspath_prepend(str(record.parent))

    return install


@pytest.mark.usefixtures("pip_here")
def test_an_editable_install_names_its_checkout(install_from: Callable[[object], None]) -> None:
    install_from({"url": REPOSITORY.as_uri(), "dir_info": {"editable": True}})
    assert (checkout(), installed_wheel()) == (REPOSITORY, None)
    assert install_command("images") == f"pip install --editable '{REPOSITORY}[images]'"
    assert install_command() == f"pip install --editable {REPOSITORY}"


@pytest.mark.usefixtures("pip_here")
def test_a_wheel_that_is_still_there_is_named(install_from: Callable[[object], None], tmp_path: Path) -> None:
    wheel = tmp_path / "with space" / "sparsyedge-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    install_from({"url": wheel.as_uri(), "archive_info": {}})
    assert (checkout(), installed_wheel()) == (None, wheel)
    assert install_command("images") == f"pip install '{wheel}[images]'"


@pytest.mark.usefixtures("pip_here")
@pytest.mark.parametrize(
    "origin",
    [None, "", "{", "[]", {"url": "file:///gone", "dir_info": {}}, {"url": "https://example.org/x.whl"}, {"url": 7}],
)
def test_elsewhere_the_hint_names_what_the_extra_brings(install_from: Callable[[object], None], origin: object) -> None:
    install_from(origin)
    assert install_command("images") == "pip install 'pillow>=10'"
    everything = install_command("demo")
    assert all(name in everything for name in ("torch==", "rich>=", "scikit-learn>="))
    assert "sparsyedge" not in everything
    assert install_command() == "pip install sparsyedge-*.whl"


def test_another_pip_on_the_path_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/pip")
    assert install_command("images").startswith(f"{sys.executable} -m pip install ")


def test_no_text_of_ours_installs_from_an_index_by_name() -> None:
    folders = ("edge", "coordinator", "export", "benchmarks", "hardware", "docs")
    paths = [*REPOSITORY.glob("*.*"), *(path for folder in folders for path in (REPOSITORY / folder).rglob("*"))]
    for path in (path for path in paths if path.suffix in (".py", ".md", ".toml")):
        assert re.search(r"pip install '?sparsyedge(?!-)", path.read_text(encoding="utf-8")) is None, path
