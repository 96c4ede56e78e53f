"""One tiny model, and one server that the tests of this folder share where they need no settings of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftgraph import LLM, load
from support.serving import CONTEXT, Serving, serving, write_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def shared(model_path: Path) -> Iterator[Serving]:
    with serving(model_path, slots=4, server={"queue": 32}) as running:
        yield running


@pytest.fixture(scope="session")
def alone(model_path: Path) -> Iterator[LLM]:
    """The same model without a server: what every answer is compared with."""
    with load(model_path, context=CONTEXT, threads=1) as llm:
        yield llm
