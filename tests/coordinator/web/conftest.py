"""Pages for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fixtures.page_runs import write_run

from sparsyedge.coordinator.authority.authority import Authority, Settings

if TYPE_CHECKING:
    from fixtures.page_site import Site


@pytest.fixture(scope="session")
def authority_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority.init(tmp_path_factory.mktemp("web") / "fleet", Settings(hosts=("page.lab",))).folder


@pytest.fixture(scope="session")
def written_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run under way: every record is synced to disk, so it is written once and copied."""
    return write_run(tmp_path_factory.mktemp("web") / "run")


@pytest.fixture
def page_site(tmp_path: Path, authority_folder: Path, written_run: Path) -> Iterator[Callable[..., Site]]:
    # Import here: not every machine that runs tests has a web server's packages.
    from fixtures.page_site import make_site

    with ExitStack() as stack:

        def make(*, login: bool, address: str = "192.168.7.7") -> Site:
            site = make_site(written_run, tmp_path / "run", authority_folder, login=login, address=address)
            stack.enter_context(site.client)
            return site

        yield make


@pytest.fixture
def open_site(page_site: Callable[..., Site]) -> Site:
    """A page on loopback, open to whoever reaches it."""
    return page_site(login=False)


@pytest.fixture
def guarded_site(page_site: Callable[..., Site]) -> Site:
    """A page that asks for the token."""
    return page_site(login=True)
