"""What a server says beside its answers: not a line for each senseless request, and a warning of keys that are open."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import pytest

from draftgraph.config import ServerConfig
from draftgraph.server.logs import Sparing
from draftgraph.server.security import read_keys
from support.serving import Serving, raw, wait_for

KEY = "0123456789abcdef0123456789abcdef"


class Clock:
    """A clock that a test sets."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("draftgraph.server.logs.time", clock)
    return clock


def record(text: str, *args: object, level: int = logging.WARNING, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("draftgraph.server", level, __file__, 1, text, args, info)


def test_one_record_of_a_kind_is_written_and_the_next_says_how_many_were_not(clock: Clock) -> None:
    sparing = Sparing()
    assert sparing.filter(record("refused from %s", "a"))
    clock.now += 9.9
    assert not any(sparing.filter(record("refused from %s", number)) for number in range(500))
    clock.now += 0.2
    last = record("refused from %s", "b")
    assert sparing.filter(last)
    assert last.getMessage() == "refused from b (500 more like this were left out)"
    clock.now += 10
    last = record("refused from %s", "c")
    assert sparing.filter(last)
    assert last.getMessage() == "refused from c"


def test_records_of_other_kinds_are_written(clock: Clock) -> None:
    sparing = Sparing()
    others = [
        record("a step failed"), record("a step failed", level=logging.ERROR), record("another"),
        record("a step failed", level=logging.ERROR, error=ValueError()),
        record("a step failed", level=logging.ERROR, error=MemoryError()),
    ]  # fmt: skip
    assert all(sparing.filter(one) for one in others)


def test_a_flood_of_bytes_that_are_no_request_is_a_line_or_two(
    shared: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(sparing := Sparing())
    try:
        for _ in range(50):
            with raw(shared.url, b"GET\r\n\r\n") as connection:
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
        wait_for(lambda: len(caplog.records) > 0)
    finally:
        caplog.handler.removeFilter(sparing)
    assert len(caplog.records) <= 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are other ways there to say who may read a file")
@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o620, True)]
)
def test_keys_that_others_can_read_are_warned_of(tmp_path: Path, mode: int, is_open: bool) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n")
    file.chmod(mode)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(read_keys(ServerConfig(api_key_file=str(file)))) == 1
    assert [f"chmod 600 {file}" in str(one.message) for one in said] == [True] * is_open
    assert not any(KEY in str(one.message) for one in said)
