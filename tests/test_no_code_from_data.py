"""Data never becomes code: no file of the repository unpickles, evaluates or executes what it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from fixtures.repository import REPOSITORY

FOLDERS = ("edge", "coordinator", "export", "benchmarks", "hardware", "tests")
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop"}
BUILTINS = {"eval", "exec", "compile", "__import__"}


def offences(source: str) -> Iterator[str]:
    """What a source file does that could turn data into code, with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"{node.lineno}: import {a.name}" for a in names if a.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield f"{node.lineno}: from {module} import"
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
                yield f"{node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="builtins"), attr=name)) if name in BUILTINS:
                yield f"{node.lineno}: builtins.{name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="load"), keywords=keywords):
                yield from _unsafe_load(node.lineno, owner, {keyword.arg: keyword.value for keyword in keywords})


def _unsafe_load(line: int, owner: str, keywords: dict[str | None, ast.expr]) -> Iterator[str]:
    safe_only = {"torch": "weights_only"}
    unless_asked = {"np": "allow_pickle", "numpy": "allow_pickle"}
    if owner in safe_only and not _is_true(keywords.get(safe_only[owner])):
        yield f"{line}: {owner}.load() without {safe_only[owner]}=True"
    if owner in unless_asked and unless_asked[owner] in keywords and not _is_false(keywords[unless_asked[owner]]):
        yield f"{line}: {owner}.load() with {unless_asked[owner]}"
    if owner == "yaml":
        yield f"{line}: yaml.load()"


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_no_file_of_the_repository_turns_data_into_code() -> None:
    paths = [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    assert len(paths) > 150
    found = [
        f"{path.relative_to(REPOSITORY)}:{offence}"
        for path in paths
        for offence in offences(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal",
        "from pickle import loads as read",
        "import pickle as p",
        "eval('1')",
        "def f():\n    exec(text)",
        "builtins.eval(text)",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text)",
    ],
)
def test_the_look_finds(source: str) -> None:
    assert list(offences(source))


@pytest.mark.parametrize(
    "source",
    ["model.eval()", "re.compile('x')", "np.load(path)", "np.load(path, allow_pickle=False)", "os.execv(path, words)"],
)
def test_the_look_lets_pass(source: str) -> None:
    assert not list(offences(source))
