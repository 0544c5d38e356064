"""The parser that every command uses: the same help and options everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from sparsyedge.edge.commands import logs

__all__ = ["Parser", "version_line"]


class Parser(argparse.ArgumentParser):
    """A parser with `--verbose` and `--version`. A subcommand's line in the listing is also its description."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", "parsers", _Subcommands)
        self.add_argument("-v", "--verbose", action=_Verbose, help="log more, for debugging")
        self.add_argument("--version", action=_Version, help="print the version and exit")


class _Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Turns a subcommand's line on the parent's page into the description of its own page."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        if options.get("help"):
            options.setdefault("description", _sentence(options["help"]))
        parser: argparse.ArgumentParser = super().add_parser(name, **options)
        return parser


class _Verbose(argparse.Action):
    """Takes effect while the arguments are parsed, so no command has to pass it on."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        logs.be_verbose()


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        print(version_line())
        parser.exit()


def version_line() -> str:
    """The program and its version."""
    return f"sparsyedge {metadata.version('sparsyedge')}"


def _sentence(phrase: str) -> str:
    return f"{phrase[0].upper()}{phrase[1:]}{'' if phrase.endswith('.') else '.'}"
