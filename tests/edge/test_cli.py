import os
import subprocess
import sys
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from sparsyedge.edge import cli
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.installation import install_command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str]], int]], None]:
    """Makes a function the subcommand `edge`."""

    def install(run: Callable[[list[str]], int]) -> None:
        module = types.ModuleType("sparsyedge_test_command")
        module.main = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "edge", (f"{module.__name__}:main", "a command of this test"))

    return install


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_subcommand(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    output = capsys.readouterr().out
    assert all(f"  {name} " in output for name in cli.COMMANDS)


def test_version_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "sparsyedge 1.2.3\n"


def test_unknown_subcommand_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exprot"]) == 2
    assert capsys.readouterr().err == "sparsyedge: error: unknown subcommand `exprot`; did you mean `export`?\n"


def test_unknown_subcommand_like_no_other_is_refused_with_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyz"]) == 2
    assert f"allowed are {', '.join(cli.COMMANDS)}" in capsys.readouterr().err


def test_subcommand_gets_the_other_arguments_and_gives_the_exit_code(
    command: Callable[[Callable[[list[str]], int]], None],
) -> None:
    seen = []

    def run(argv: list[str]) -> int:
        seen.extend(argv)
        return 7

    command(run)
    assert cli.main(["edge", "--config", "x"]) == 7
    assert seen == ["--config", "x"]


def test_named_fault_is_one_sentence_without_a_traceback(
    command: Callable[[Callable[[list[str]], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: list[str]) -> int:
        raise ConfigError("key `x` is unknown")

    command(run)
    assert cli.main(["edge"]) == 2
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
    monkeypatch.setattr(cli, "LAST_TRAINING_PYTHON", sys.version_info[:2])
    assert cli.main([name]) == 2
    assert f"needs the module {module}" in (error := capsys.readouterr().err)
    assert f"run `{install_command(extra)}`" in error


def test_a_python_that_is_too_new_to_export_is_told_so_and_not_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(target: str) -> None:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr("importlib.import_module", load)
    monkeypatch.setattr(cli, "LAST_TRAINING_PYTHON", (3, 0))
    assert cli.main(["export"]) == 2
    assert "make a virtual environment with Python 3.11" in capsys.readouterr().err


def test_interrupt_ends_with_the_code_that_shells_expect(
    command: Callable[[Callable[[list[str]], int]], None],
) -> None:
    def run(argv: list[str]) -> int:
        raise KeyboardInterrupt

    command(run)
    assert cli.main(["edge"]) == 130


def run_cli(*argv: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())", *argv]


def test_reader_that_goes_away_is_no_fault_to_speak_of() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(run_cli("--help"), stdout=writer, stderr=subprocess.PIPE, timeout=30)
    finally:
        os.close(writer)
    assert result.stderr == b""


def test_device_with_a_bad_config_ends_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text('id = "pi"\nthread = 1\n[data]\ndataset = "digits"\n')
    result = subprocess.run(run_cli("edge", "--config", str(path)), capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"sparsyedge: error: {path}: unknown key `thread`; did you mean `threads`?\n"


def test_command_line_imports_nothing_but_the_base_of_edge() -> None:
    probe = "import sys, sparsyedge.edge.cli; print(*{'numpy', 'torch', 'onnxruntime', 'paho'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.strip() == ""


def test_device_never_imports_torch() -> None:
    probe = "import sys; sys.modules['torch'] = None; import sparsyedge.edge.device"
    subprocess.run([sys.executable, "-c", probe], timeout=60, check=True)
