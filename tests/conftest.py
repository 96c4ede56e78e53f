"""Fixtures that every folder of tests shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgraph.environment import OFFLINE, is_offline
from draftgraph.models import catalog

QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """A larger model with another vocabulary, which nothing fetches."""
    path = catalog.cache_dir() / QWEN
    if not path.exists():
        pytest.skip(f"{QWEN} is not in {path.parent}; put it there to run this test")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--schema-examples", type=int, default=0, metavar="N",
        help="try every phase of schemathesis on the server, with N examples per operation, instead of a few examples",
    )  # fmt: skip


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file; fetched if it is not in the cache, unless downloads are refused."""
    entry = catalog.CATALOG["smollm2-135m"]
    if is_offline() and not catalog.is_pulled(entry):
        pytest.skip(f"{entry.name} is not in {catalog.cache_dir()}, and {OFFLINE} refuses to download it")
    return catalog.resolve(entry.name)
