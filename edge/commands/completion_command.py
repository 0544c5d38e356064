"""`sparsyedge completion bash|zsh|fish`: prints a script that completes commands, options and their choices.

The script contains every word a user can type: the shell completes without starting Python, let alone torch.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.command_table import CommandTable
from sparsyedge.edge.commands.installed_commands import installed_commands
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["Page", "main", "make_parser", "pages"]


@dataclass(frozen=True)
class Page:
    """One help page: the words that lead to it, its parser, and its subcommands with their summaries."""

    words: tuple[str, ...]
    parser: argparse.ArgumentParser
    subcommands: dict[str, str]

    @property
    def place(self) -> str:
        return " ".join(self.words)

    @property
    def options(self) -> list[argparse.Action]:
        return [action for action in self.parser._actions if action.option_strings]

    @property
    def positional_choices(self) -> list[str]:
        """The words allowed here besides subcommands and options."""
        positional = [action for action in self.parser._actions if not action.option_strings]
        return [str(word) for action in positional if not _is_table(action) for word in action.choices or ()]

    @property
    def words_here(self) -> list[str]:
        """Every word allowed here, except files."""
        options = [text for action in self.options for text in action.option_strings]
        return [*self.subcommands, *self.positional_choices, *options]


def main(argv: list[str]) -> int:
    """Print the script for one shell."""
    shell = make_parser().parse_args(argv).shell
    commands = installed_commands()
    print(SHELLS[shell](commands, list(pages(commands))), end="")
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge completion`."""
    parser = Parser(
        prog="sparsyedge completion",
        description="Print a script that completes `sparsyedge` in a shell: commands, options and their choices.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="write it once, and again after an upgrade or a new extra:\n"
        "  sparsyedge completion bash > ~/.local/share/bash-completion/completions/sparsyedge\n"
        "  sparsyedge completion fish > ~/.config/fish/completions/sparsyedge.fish\n"
        '  sparsyedge completion zsh > "${fpath[1]}/_sparsyedge"',
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to print a script for")
    return parser


def pages(table: CommandTable, words: tuple[str, ...] = ()) -> Iterator[Page]:
    """Every help page below a table of commands; skips commands whose extra is not installed."""
    for name, command in table.items():
        try:
            module = command.load()
        except (ModuleNotFoundError, SparsyedgeError):
            continue
        below: CommandTable = getattr(module, "SUBCOMMANDS", {})
        yield from _pages_of(module.make_parser(), (*words, name), {key: row.summary for key, row in below.items()})
        yield from pages(below, (*words, name))


def _pages_of(parser: argparse.ArgumentParser, words: tuple[str, ...], listed: dict[str, str]) -> Iterator[Page]:
    tables = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help or "" for action in tables for choice in action._choices_actions}
    yield Page(words, parser, {**listed, **helps})
    for action in tables:
        for name, child in action.choices.items():
            yield from _pages_of(child, (*words, name), {})


def _is_table(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


# ---- one script per shell --------------------------------------------------------------------------------------------


def _top_words(commands: CommandTable) -> list[str]:
    return [*commands, "--help", "--verbose", "--version"]


def _choices(found: list[Page]) -> Iterator[tuple[str, str, list[str]]]:
    """Options with a fixed set of values: the place, the option, the values."""
    for page in found:
        for action in page.options:
            if action.choices:
                for option in action.option_strings:
                    yield page.place, option, [str(choice) for choice in action.choices]


def _posix_cases(commands: CommandTable, found: list[Page]) -> dict[str, str]:
    """The case branches that bash and zsh share."""
    known = [page.place for page in found] + list(commands)
    return {
        "KNOWN": "|".join(shlex.quote(place) for place in dict.fromkeys(known)),
        "CHOICES": "\n".join(
            f"        {shlex.quote(f'{place} {option}')}) offered=({shlex.join(offered)}) ;;"
            for place, option, offered in _choices(found)
        ),
        "WORDS": "\n".join(
            f"        {shlex.quote(place)}) offered=({shlex.join(offered)}) ;;"
            for place, offered in [("", _top_words(commands)), *((page.place, page.words_here) for page in found)]
        ),
    }


def _fill(template: str, parts: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match.group(1)], template)


BASH = """\
# Completes `sparsyedge` in bash; made by `sparsyedge completion bash`.
_sparsyedge() {
    local current=${COMP_WORDS[COMP_CWORD]} place= word
    local -a offered=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "${place:+$place }$word" in
        @KNOWN@) place="${place:+$place }$word" ;;
        esac
    done
    case "$place ${COMP_WORDS[COMP_CWORD-1]}" in
@CHOICES@
        *) case "$place" in
@WORDS@
        esac ;;
    esac
    COMPREPLY=($(compgen -W "${offered[*]}" -- "$current"))
}
# Where no word fits, files are offered.
complete -o default -F _sparsyedge sparsyedge
"""

ZSH = """\
#compdef sparsyedge
# Completes `sparsyedge` in zsh; made by `sparsyedge completion zsh`.
_sparsyedge() {
    local place= word
    local -a offered
    for word in ${words[2,CURRENT-1]}; do
        case "${place:+$place }$word" in
        @KNOWN@) place="${place:+$place }$word" ;;
        esac
    done
    case "$place ${words[CURRENT-1]}" in
@CHOICES@
        *) case "$place" in
@WORDS@
        esac ;;
    esac
    compadd -- $offered
    _files
}
if [ "$funcstack[1]" = _sparsyedge ]; then
    _sparsyedge "$@"
else
    compdef _sparsyedge sparsyedge
fi
"""

FISH = """\
# Completes `sparsyedge` in fish; made by `sparsyedge completion fish`.
function __sparsyedge_at
    set -l place
    for word in (commandline -opc)[2..]
        if contains -- "$place $word" @PLACES@
            set place "$place $word"
        end
    end
    test "$place" = "$argv[1]"
end
@LINES@
"""


def _bash(commands: CommandTable, found: list[Page]) -> str:
    return _fill(BASH, _posix_cases(commands, found))


def _zsh(commands: CommandTable, found: list[Page]) -> str:
    return _fill(ZSH, _posix_cases(commands, found))


def _fish(commands: CommandTable, found: list[Page]) -> str:
    # Places begin with a space here: it saves fish a special case for the first word.
    places = dict.fromkeys([f" {page.place}" for page in found] + [f" {name}" for name in commands])
    lines = [_fish_line("", f"-f -a {name}", command.summary) for name, command in commands.items()]
    for page in found:
        at = f" {page.place}"
        lines += [_fish_line(at, f"-f -a {name}", summary) for name, summary in page.subcommands.items()]
        lines += [_fish_line(at, f"-f -a {_fish_quote(word)}", "") for word in page.positional_choices]
        for action in page.options:
            names = " ".join(
                f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in action.option_strings
            )
            values = "" if action.nargs == 0 else " -r"
            if action.choices:
                values = f" -xa {_fish_quote(' '.join(map(str, action.choices)))}"
            lines.append(_fish_line(at, names + values, _help_of(action, page.parser)))
    return _fill(FISH, {"PLACES": " ".join(map(_fish_quote, places)), "LINES": "\n".join(lines)})


def _fish_line(place: str, what: str, summary: str) -> str:
    said = f" -d {_fish_quote(summary)}" if summary else ""
    return f"complete -c sparsyedge -n {_fish_quote(f'__sparsyedge_at {_fish_quote(place)}')} {what}{said}"


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _help_of(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


SHELLS: dict[str, Callable[[CommandTable, list[Page]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
