"""Every help page of `sparsyedge`, and the scripts for shells that are made from them."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparsyedge.edge import cli
from sparsyedge.edge.commands.completion_command import Page, pages
from sparsyedge.edge.commands.installed_commands import installed_commands

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="the pages of export need torch")
COMMANDS = installed_commands()
PAGES = list(pages(COMMANDS))


def run_cli(*argv: str, **modules: object) -> subprocess.CompletedProcess[str]:
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in modules)
    script = f"import sys; {hidden}from sparsyedge.edge.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=300)


@NEEDS_TORCH
def test_every_command_of_the_table_has_a_page() -> None:
    assert {page.words[0] for page in PAGES} == set(COMMANDS)
    assert {("coordinator", "run"), ("edge", "enrol"), ("bench", "compare"), ("flash", "pi")} <= {
        page.words for page in PAGES
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.place)
def test_a_page_opens_with_a_sentence_and_offers_what_all_offer(page: Page) -> None:
    assert re.match(r"[A-Z][^.]{10,}.*\.(\s|$)", page.parser.description or ""), page.parser.description
    assert page.parser.prog == f"sparsyedge {page.place}"
    options = {text for action in page.options for text in action.option_strings}
    assert {"-h", "--help", "-v", "--verbose", "--version"} <= options
    assert page.parser.format_help()


@pytest.mark.parametrize("argv", [["coordinator", "--version"], ["edge", "enrol", "--version"], ["bench", "--version"]])
def test_the_version_is_printed_anywhere(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(argv)
    assert re.fullmatch(r"sparsyedge \d+\.\d+\.\d+(\.dev\d+)?\n", capsys.readouterr().out)


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "sparsyedge"
    path.write_text(completion("bash"))
    return path


def completion(shell: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert cli.main(["completion", shell]) == 0
    return said.getvalue()


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words; no Python runs."""
    line = " ".join(f"'{word}'" for word in ("sparsyedge", *words))
    ask = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sparsyedge; printf '%s\\n' ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=300, env={}, check=True)
    return done.stdout.split()


@NEEDS_TORCH
def test_bash_completes_commands_options_and_choices(bash_script: Path) -> None:
    assert completed(bash_script, "coord") == ["coordinator"]
    assert completed(bash_script, "coordinator", "dev") == ["devices"]
    assert completed(bash_script, "edge", "enrol", "--work") == ["--work-dir"]
    assert completed(bash_script, "demo", "--dataset", "cifar100") == ["cifar100"]
    assert completed(bash_script, "export", "--json", "--method", "zer") == ["zerofl"]


def test_a_device_without_the_extras_completes_what_it_has() -> None:
    done = run_cli("completion", "bash", torch=None, rich=None)
    assert done.returncode == 0, done.stderr
    assert "'edge enrol'" in done.stdout
    assert "'coordinator run'" not in done.stdout
    assert " coordinator " in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_their_scripts(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "sparsyedge"
    script.write_text(completion(shell))
    assert "enrol" in script.read_text()
    binary = shutil.which(shell)
    if binary is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([binary, "-n", str(script)], check=True, timeout=300)
