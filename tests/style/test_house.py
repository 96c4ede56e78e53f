"""House rules that a machine can check: docstrings, the environment, booleans, lengths, things left behind."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from style.test_imports import SOURCES

MOST_LINES = 400


def without_docstring(modules: Mapping[str, str]) -> list[str]:
    """Modules that do not open by saying what they are; empty package files need not."""
    return [name for name, source in modules.items() if source.strip() and not ast.get_docstring(ast.parse(source))]


def readers_of_the_environment(modules: Mapping[str, str]) -> list[str]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    found = []
    for module, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            by_attribute = isinstance(node, ast.Attribute) and node.attr in names
            by_name = isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
            if by_attribute or by_name:
                found.append(module)
    return sorted({*found} - {"environment"})


def boolean_switches(modules: Mapping[str, str]) -> list[str]:
    """Parameters of public functions in engine/, graph/ and verify/ that are booleans and may be given by position."""
    found = []
    for module, source in modules.items():
        if module.split(".")[0] not in ("engine", "graph", "verify"):
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_") and node.name != "__init__":
                continue
            defaults = [None] * (len(node.args.args) - len(node.args.defaults)) + list(node.args.defaults)
            for arg, default in zip(node.args.args, defaults, strict=True):
                typed = arg.annotation is not None and "bool" in ast.unparse(arg.annotation).replace("bool_", "")
                given = isinstance(default, ast.Constant) and isinstance(default.value, bool)
                if typed or given:
                    found.append(f"{module}.{node.name}({arg.arg})")
    return found


def too_long(modules: Mapping[str, str]) -> list[str]:
    lengths = {name: len(source.splitlines()) for name, source in modules.items()}
    return [f"{name}: {num} lines" for name, num in lengths.items() if num > MOST_LINES]


def left_behind(modules: Mapping[str, str]) -> list[str]:
    """Notes to self, bare `except`, prints for debugging, and mutable or global state at the top of a module."""
    found = []
    for module, source in modules.items():
        found += [f"{module}: {word}" for word in ("TODO", "FIXME", "XXX", "breakpoint(") if word in source]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{module}:{node.lineno}: a bare except")
            if isinstance(node, ast.Global):
                found.append(f"{module}:{node.lineno}: global")
    return found


# Booleans that may be given by position, and why.
ALLOWED_SWITCHES: frozenset[str] = frozenset()


def test_every_module_says_what_it_is() -> None:
    assert without_docstring(SOURCES) == []


def test_the_environment_is_read_in_one_file() -> None:
    assert readers_of_the_environment(SOURCES) == []


def test_no_boolean_picks_an_algorithm_in_the_stages() -> None:
    assert sorted(boolean_switches(SOURCES)) == sorted(ALLOWED_SWITCHES)


def test_a_file_can_be_read_in_one_sitting() -> None:
    assert too_long(SOURCES) == []


def test_nothing_is_left_behind() -> None:
    assert left_behind(SOURCES) == []


def test_planted_faults_are_caught() -> None:
    assert without_docstring({"a": "x = 1", "b": '"""Says so."""\nx = 1', "c": ""}) == ["a"]
    reads = {"a": "import os\nos.environ['X']", "b": "import os\nos.getenv('X')", "c": "from os import environ"}
    assert readers_of_the_environment({**reads, "environment": "import os\nos.environ", "d": "import os"}) == [
        "a",
        "b",
        "c",
    ]
    assert too_long({"a": "\n" * 401, "b": "\n" * 400}) == ["a: 401 lines"]
    noted = "# TO" + "DO later\n"
    assert left_behind({"a": noted, "b": "try:\n    pass\nexcept:\n    pass", "c": "def f():\n    global x"}) == [
        "a: TODO", "b:3: a bare except", "c:2: global",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "is_caught"),
    [
        ("def f(fast: bool) -> None: ...", True),
        ("def f(fast: bool | None = None) -> None: ...", True),
        ("def f(fast=True): ...", True),
        ("class A:\n    def __init__(self, rows: int, fast: bool = False) -> None: ...", True),
        ("def f(*, same_depth: bool) -> None: ...", False),
        ("def _f(fast: bool) -> None: ...", False),
        ("class A:\n    same_depth: bool = False", False),
        ("def f(mask: npt.NDArray[np.bool_]) -> bool: ...", False),
    ],
)
def test_a_planted_boolean_is_caught(source: str, is_caught: bool) -> None:
    assert bool(boolean_switches({"graph.budget": source})) == is_caught
    assert boolean_switches({"draft.model": source}) == []
