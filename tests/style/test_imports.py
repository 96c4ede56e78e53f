"""Imports only go down, nowhere in a circle, and at the top of a file.

A leaf may be imported from anywhere above it; what may not see what, and why, is in docs/architecture.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import draftgraph

ROOT = Path(draftgraph.__file__).parent
PACKAGE = "draftgraph"
EXTENSION = "_native"  # the compiled module: no source, so it imports nothing

# Low to high. A unit is a file or folder of the package; one may import units of lower layers, and itself.
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "_native",
        "extension",
        "errors rng environment",
        "types config",
        "kernels",
        "models",
        "graph",
        "runner",
        "draft verify",
        "plan",
        "engine",
        "data doctor draw perplexity speeds",
        "workshop steps",
        "llm",
        "audit view explain server",
        "bench",
        "profile static_plan",
        "__init__",
        "cli",
        "__main__",
    )
)
HEIGHT = {unit: height for height, layer in enumerate(LAYERS) for unit in layer}

# Beyond the layers: all that these modules may import of ours, by longest prefix.
ONLY: Mapping[str, frozenset[str]] = {
    "graph": frozenset({"graph", "types"}),
    "verify": frozenset(
        {"verify", "graph", "kernels.likeliest", "kernels.exp_sum", "types", "config", "rng", "errors"}
    ),
    "draft": frozenset({"draft", "graph", "kernels.likeliest", "runner.base", "types", "rng"}),
    "draft.table": frozenset({"draft", "runner.base", "types", "rng", "config", "errors"}),
    "draft.own": frozenset({"draft", "graph", "types", "errors"}),
    "plan.static": frozenset({"plan.cost"}),
    "plan": frozenset({"plan", "graph", "draft.base", "runner.base", "types", "config"}),
    "engine": frozenset(
        {"engine", "graph", "plan", "draft.base", "runner.base", "verify", "types", "config", "rng", "errors"}
    ),
    "server": frozenset(
        {"server", "llm", "models.tokenizer", "engine", "verify.grammar", "steps", "types", "config", "data", "errors"}
    ),
    "steps": frozenset({"draw", "graph.token_graph", "types"}),
    "bench.significance": frozenset(),
    "draw": frozenset({"draw", "types", "errors"}),
    "runner.base": frozenset({"types"}),
    "runner.kv": frozenset({"types", "errors"}),
}
# Imported inside functions, because a user may lack them or because they are slow to import.
OPTIONAL = {"huggingface_hub", "gguf", "llguidance", "torch"}
# `doctor` looks at packages one by one and must not fail where one is broken. The server stands on optional packages.
OPTIONAL_IN = {"doctor": {"numpy"}, "cli.serve": {PACKAGE}}


def module_name(path: Path, root: Path = ROOT) -> str:
    """The module's name within the package, such as "graph.budget"; packages are named by their folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def unit_of(module: str) -> str:
    return module.split(".")[0]


def imports_of(source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Our modules that a source imports anywhere in it, as names within the package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            if head == PACKAGE:
                # "graph.budget.select" is the name `select` of the module "graph.budget".
                while rest and rest not in modules and rest != EXTENSION:
                    rest = rest.rpartition(".")[0]
                yield rest or "__init__"


def upward_imports(modules: Mapping[str, str]) -> list[str]:
    found = []
    for module, source in modules.items():
        unit = unit_of(module)
        for target in imports_of(source, modules):
            other = unit_of(target)
            allowed = next(
                (ONLY[key] for key in sorted(ONLY, key=len, reverse=True) if f"{module}.".startswith(f"{key}.")), None
            )
            if other != unit and HEIGHT[other] >= HEIGHT[unit]:
                found.append(f"{module} imports {target}, which is not below it")
            elif allowed is not None and not any(f"{target}.".startswith(f"{name}.") for name in allowed):
                found.append(f"{module} imports {target}, which it must not know")
    return found


def cycles(modules: Mapping[str, str]) -> list[str]:
    """Modules that import themselves through others."""
    edges = {module: set(imports_of(source, modules)) for module, source in modules.items()}
    found = []
    for start in edges:
        seen: set[str] = set()
        pending = list(edges[start])
        while pending:
            module = pending.pop()
            if module not in seen:
                seen.add(module)
                pending.extend(edges.get(module, ()))
        if start in seen:
            found.append(start)
    return found


def late_imports(modules: Mapping[str, str]) -> list[str]:
    """Imports within functions, except of optional packages."""
    found = []
    for module, source in modules.items():
        allowed = OPTIONAL | OPTIONAL_IN.get(module, set())
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    heads = {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    heads = {(node.module or ".").split(".")[0]}
                else:
                    continue
                found += [f"{module}:{node.lineno} imports {head} in a function" for head in heads - allowed]
    return found


def tensor_imports(modules: Mapping[str, str]) -> list[str]:
    """Modules of the server that import NumPy."""
    return [
        module
        for module, source in modules.items()
        if unit_of(module) == "server" and ("import numpy" in source or "from numpy" in source)
    ]


def test_the_server_never_sees_tensors() -> None:
    assert tensor_imports(SOURCES) == []
    assert tensor_imports({"server.routes": "import numpy as np", "draw": "import numpy"}) == ["server.routes"]


def test_every_unit_has_a_layer() -> None:
    unknown = {unit_of(module) for module in SOURCES} - HEIGHT.keys()
    assert not unknown, f"say in LAYERS where these stand: {sorted(unknown)}"


def test_imports_only_go_down() -> None:
    assert upward_imports(SOURCES) == []


def test_nothing_imports_itself_through_others() -> None:
    assert cycles(SOURCES) == []


def test_imports_stand_at_the_top_except_of_optional_packages() -> None:
    assert late_imports(SOURCES) == []


PLANTED = {
    "types": "",
    "config": "",
    "errors": "",
    "rng": "",
    "kernels.reference": "",
    "models.base": "",
    "graph.budget": "",
    "runner.base": "",
    "runner.kv": "",
    "draft.model": "",
    "draft.table": "",
    "draft.translated": "",
    "models.translation": "",
    "verify.accept": "",
    "engine.engine": "",
    "draw": "",
    "draw.layout": "",
    "draw.chart": "",
    "plan.static": "",
    "bench.report": "",
    "llm": "",
    "workshop": "",
    "steps": "",
    "server.routes": "",
    "__init__": "",
    "cli": "",
}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors", "from draftgraph.types import Row"),
        ("types", "from draftgraph import config"),
        ("kernels.reference", "import draftgraph.models.base"),
        ("models.base", "from draftgraph.graph.budget import select"),
        ("graph.budget", "from draftgraph.models.base import ModelConfig"),
        ("graph.budget", "from draftgraph.kernels import reference"),
        ("graph.budget", "def f():\n    from draftgraph.engine import engine"),
        ("draft.model", "from draftgraph.runner.kv import BLOCK"),
        ("draft.model", "from draftgraph.runner import kv"),
        ("draft.model", "from draftgraph.kernels import reference"),
        ("draft.model", "from draftgraph.config import DraftConfig"),
        ("draft.model", "from draftgraph.verify.accept import match"),
        ("draft.table", "from draftgraph.models.base import ModelConfig"),
        ("draft.translated", "from draftgraph.models.translation import TokenTranslation"),
        ("models.translation", "from draftgraph.draft.translated import Translation"),
        ("verify.accept", "from draftgraph.draft import model"),
        ("verify.accept", "from draftgraph.runner.base import Runner"),
        ("verify.accept", "from draftgraph.models.base import ModelConfig"),
        ("engine.engine", "from draftgraph.models.base import ModelConfig"),
        ("engine.engine", "from draftgraph import LLM"),
        ("draw", "from draftgraph.llm import LLM"),
        ("draw.chart", "from draftgraph.plan.static import StaticTree"),
        ("plan.static", "from draftgraph.graph.budget import select"),
        ("llm", "from draftgraph.bench.report import summarise"),
        ("llm", "from draftgraph.cli import main"),
        ("llm", "from draftgraph.server import routes"),
        ("server.routes", "from draftgraph.runner.base import Runner"),
        ("steps", "from draftgraph.engine.engine import Engine"),
    ],
)
def test_a_planted_import_is_caught(module: str, line: str) -> None:
    assert upward_imports(PLANTED) == []
    assert len(upward_imports({**PLANTED, module: line})) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("draft.model", "from draftgraph.runner.base import Runner"),
        ("draft.table", "from draftgraph.config import DraftConfig\nfrom draftgraph.draft import model"),
        ("draw", "from draftgraph.draw.layout import place"),
        ("cli", "from draftgraph import LLM, llm\nimport draftgraph.draw"),
        ("graph.budget", "import heapq\nfrom draftgraph.types import TokenTree"),
    ],
)
def test_a_proper_import_is_not_caught(module: str, line: str) -> None:
    assert upward_imports({**PLANTED, module: line}) == []


def test_a_planted_cycle_is_caught() -> None:
    circle = {
        "models.a": "from draftgraph.models import b",
        "models.b": "from draftgraph.models.a import x",
        "models.c": "",
    }
    assert cycles(circle) == ["models.a", "models.b"]
    assert cycles({**circle, "models.b": "import json"}) == []


def test_a_planted_late_import_is_caught() -> None:
    method = "class A:\n    def g(self):\n        from draftgraph.types import Row\n        import torch\n"
    late = "def f():\n    import json\n\n" + method
    assert len(late_imports({"draft.model": late})) == 2
    assert late_imports({"doctor": "def f():\n    import numpy"}) == []
    assert late_imports({"graph.budget": "def f():\n    import numpy"}) != []
