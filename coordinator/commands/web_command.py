"""`sparsyedge coordinator web RUN_DIR [--address HOST:PORT]`, and the page beside `coordinator run --web`."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from sparsyedge.coordinator.authority.attendance import authority_folder
from sparsyedge.coordinator.authority.page_access import Pair
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError

__all__ = ["COMMANDS", "add_commands", "add_page_options", "beside", "main"]

COMMANDS = ("web",)
DEFAULT_ADDRESS = "127.0.0.1:8640"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add this command to those of `sparsyedge coordinator`."""
    web = commands.add_parser("web", help="show a run in browsers, under way or over, until Ctrl-C")
    web.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    web.add_argument(
        "--address",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help="where to listen; beyond this machine it needs an authority (default: %(default)s)",
    )
    web.add_argument(
        "--authority", type=Path, metavar="DIR", help="the folder of `init`, for login and TLS (default: the run's)"
    )
    add_page_options(web)


def add_page_options(parser: Parser) -> None:
    """Add the options of both commands that serve a page."""
    parser.add_argument("--certificate", type=Path, metavar="FILE.pem", help="for the page, instead of the fleet's own")
    parser.add_argument("--key", type=Path, metavar="FILE.key", help="of that certificate")
    parser.add_argument("--login", action="store_true", help="ask for the token on this machine, too")


def main(arguments: argparse.Namespace) -> int:
    """Serve a run's page until Ctrl-C."""
    # Import here, and below: only these commands need a web server.
    from sparsyedge.coordinator.web.address import listen, parse_address
    from sparsyedge.coordinator.web.server import choose_access, serve

    with closing(Store.open(arguments.run_dir)) as store:
        name, authority = store.run().name, arguments.authority or authority_folder(store)
    address = parse_address(arguments.address)
    access = choose_access(address, authority=authority, given=_given(arguments), login=arguments.login)
    with listen(address) as listener:
        port = listener.getsockname()[1]
        print(f"run {name} is at {access.scheme}://{address.host}:{port}; end with Ctrl-C", flush=True)
        serve(arguments.run_dir, listener, access)
    return 0


def beside(arguments: argparse.Namespace, config: RunConfig) -> AbstractContextManager[None]:
    """Return a context that serves the run's page from another process; does nothing without `--web`."""
    if arguments.web is None:
        if arguments.certificate or arguments.key or arguments.login:
            raise ConfigError("`--certificate`, `--key` and `--login` are for the page; add `--web`")
        return nullcontext()
    from sparsyedge.coordinator.web.address import parse_address
    from sparsyedge.coordinator.web.child import page_beside
    from sparsyedge.coordinator.web.server import choose_access

    address = parse_address(arguments.web)
    authority = Path(config.authority).expanduser() if config.authority else None
    access = choose_access(address, authority=authority, given=_given(arguments), login=arguments.login)
    return page_beside(config.run_path, address, access)


def _given(arguments: argparse.Namespace) -> Pair | None:
    if (arguments.certificate is None) != (arguments.key is None):
        raise ConfigError("`--certificate` and `--key` belong together; give both or none")
    return None if arguments.certificate is None else Pair(arguments.certificate, arguments.key)
