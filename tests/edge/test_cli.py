import os
import subprocess
import sys
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from sparsyedge.edge import cli
from sparsyedge.edge.command_list import EDGE
from sparsyedge.edge.commands import installed_commands as installed_commands_module
from sparsyedge.edge.commands.command_table import Command
from sparsyedge.edge.commands.installed_commands import find_command, installed_commands
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.installation import install_command


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a package whose metadata declares a subcommand."""

    def install(name: str, address: str) -> None:
        record = tmp_path / "toys-1.0.dist-info"
        record.mkdir()
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
        (record / "entry_points.txt").write_text(f"[sparsyedge.commands]\n{name} = {address}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.fixture
def command(
    declare: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[list[str]], int]], None]:
    """Makes a function the subcommand `toy` of another package."""

    def install(run: Callable[[list[str]], int]) -> None:
        module = types.ModuleType("toys")
        module.main = run  # type: ignore[attr-defined]
        module.TOY = Command("toys:main", "a command of this test")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "toys", module)
        declare("toy", "toys:TOY")

    return install


HELP = """\
usage: sparsyedge [-h] [-v] [--version] SUBCOMMAND ...

On-device training runtime for sparse federated learning.

  demo         a whole federated run on this machine, in one command
  export       make the artifacts that devices train: graphs, checkpoint, manifest
  coordinator  lead a fleet through the rounds of a run
  fleet        upgrade the devices of a secured fleet over the air
  simulate     a run of many simulated devices, here or on a Ray cluster
  bench        measure this machine: training steps and the wire, against peers
  report       plots of one run, or of several beside each other
  flash        make cards and phones that become devices by themselves
  edge         run this machine as a device of a fleet
  predict      classify images and .npz files with a run's model
  methods      list the training methods that a run can use
  frame        inspect a frame: a model or an update on the wire
  completion   print a completion script for your shell

options, here and after every subcommand:
  -h, --help     show a help page and exit
  -v, --verbose  log more, for debugging
  --version      print the version and exit
"""


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_subcommand_in_the_order_of_the_declarations(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == HELP


def test_another_package_can_bring_a_subcommand(
    command: Callable[[Callable[[list[str]], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda argv: 0)
    assert cli.main([]) == 0
    assert "completion script for your shell\n  toy          a command of this test\n" in capsys.readouterr().out


def test_another_package_cannot_replace_a_subcommand(declare: Callable[[str, str], None]) -> None:
    declare("edge", "toys:TOY")
    assert find_command("edge") is EDGE


@pytest.mark.parametrize("address", ["nowhere:TOY", "sparsyedge.edge.command_list:NOTHING", "sparsyedge.edge.cli:main"])
def test_a_subcommand_that_does_not_load_leaves_the_others_listed(
    address: str, declare: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    declare("toy", address)
    assert "edge" in installed_commands()
    assert "toy" not in installed_commands()
    assert f"subcommand toy ({address}) cannot be loaded and is left out" in caplog.text


def test_an_install_older_than_its_sources_is_told_to_install_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installed_commands_module, "GROUP", "sparsyedge.nothing")
    assert cli.main(["edge"]) == 2
    assert "lists no subcommands (entry points of group sparsyedge.nothing)" in (error := capsys.readouterr().err)
    assert f"run `{install_command()}`" in error


def test_version_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "sparsyedge 1.2.3\n"


def test_unknown_subcommand_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exprot"]) == 2
    assert capsys.readouterr().err == "sparsyedge: error: unknown subcommand `exprot`; did you mean `export`?\n"


def test_unknown_subcommand_like_no_other_is_refused_with_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyz"]) == 2
    allowed = "allowed are demo, export, coordinator, fleet, simulate, bench, report, flash, edge, "
    assert allowed in capsys.readouterr().err


def test_subcommand_gets_the_other_arguments_and_gives_the_exit_code(
    command: Callable[[Callable[[list[str]], int]], None],
) -> None:
    seen = []

    def run(argv: list[str]) -> int:
        seen.extend(argv)
        return 7

    command(run)
    assert cli.main(["toy", "--config", "x"]) == 7
    assert seen == ["--config", "x"]


def test_named_fault_is_one_sentence_without_a_traceback(
    command: Callable[[Callable[[list[str]], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: list[str]) -> int:
        raise ConfigError("key `x` is unknown")

    command(run)
    assert cli.main(["toy"]) == 2
    assert capsys.readouterr().err == "sparsyedge: error: key `x` is unknown\n"


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("export", "torch", "export"), ("coordinator", "rich.console", "coordinator")]
)
def test_missing_dependency_names_the_extra_that_brings_it(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(target: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("importlib.import_module", load)
    assert cli.main([name]) == 2
    assert f"needs the module {module}" in (error := capsys.readouterr().err)
    assert f"run `{install_command(extra)}`" in error


def test_interrupt_ends_with_the_code_that_shells_expect(
    command: Callable[[Callable[[list[str]], int]], None],
) -> None:
    def run(argv: list[str]) -> int:
        raise KeyboardInterrupt

    command(run)
    assert cli.main(["toy"]) == 130


def run_cli(*argv: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())", *argv]


def test_reader_that_goes_away_is_no_fault_to_speak_of() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(run_cli("--help"), stdout=writer, stderr=subprocess.PIPE, timeout=300)
    finally:
        os.close(writer)
    assert result.stderr == b""


def test_device_with_a_bad_config_ends_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text('id = "pi"\nthread = 1\n[data]\ndataset = "digits"\n')
    result = subprocess.run(run_cli("edge", "--config", str(path)), capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert result.stderr == f"sparsyedge: error: {path}: unknown key `thread`; did you mean `threads`?\n"


def test_the_help_page_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from sparsyedge.edge.cli import main; main(['--help']); "
        "print(*{'numpy', 'torch', 'onnxruntime', 'paho', 'rich', 'msgspec'} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=300, check=True)
    assert result.stderr.strip() == ""


def test_device_never_imports_torch() -> None:
    probe = "import sys; sys.modules['torch'] = None; import sparsyedge.edge.commands.edge_command"
    subprocess.run([sys.executable, "-c", probe], timeout=300, check=True)
