"""A short fuzz of bodies; `make fuzz-bodies` sends ten thousand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from support.fuzzing import fuzz
from support.serving import Serving, serving

COUNT = 300


def test_whatever_is_sent_gets_an_answer_below_500(model_path: Path) -> None:
    with serving(model_path, slots=4, context=256, defaults={"max_tokens": 4}) as running:
        summary = fuzz(running, 1, lambda sent: sent < COUNT)
        assert not summary.wrong, str(summary)
        assert summary.statuses[200] > COUNT // 20, str(summary)
        assert summary.statuses[400] > COUNT // 20, str(summary)
        running.assert_idle(10)


def test_a_fuzz_sees_a_failure(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses, missing answers and a loop that is held are each told."""

    def post(*_: Any, **__: Any) -> httpx.Response:
        return httpx.Response(500, text="planted")

    monkeypatch.setattr(httpx.Client, "post", post)
    assert "planted" in str(fuzz(shared, 1, lambda sent: sent < 1))
    monkeypatch.setattr(httpx.Client, "post", lambda *_, **__: (_ for _ in ()).throw(httpx.ReadError("planted")))
    assert "no answer" in str(fuzz(shared, 1, lambda sent: sent < 1))
