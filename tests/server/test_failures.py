"""An engine that fails in the middle: those it failed for are told, everybody else goes on, nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from draftgraph.types import Context, Delta, Verdict
from support.serving import CHAT, TEXT, Serving, error_of, read_events, serving, wait_for

BODY = {"prompt": "Once", "max_tokens": 30, "ignore_eos": True}


@pytest.fixture
def running(model_path: Path) -> Iterator[Serving]:
    with serving(model_path, slots=2, server={"queue": 4}) as running:
        yield running


def fail_at(running: Serving, number: int, error: BaseException) -> None:
    """Lets the runner raise at its pass `number` from now, once."""
    runner, passes = running.llm.engine.runner, 0
    extend: Callable[..., Any] = runner.extend

    def failing(batch: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == number:
            raise error
        return extend(batch)

    runner.extend = failing  # type: ignore[method-assign]


class Broken:
    """A drafter that raises whenever it is asked or told something, while it is broken."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.is_broken = True

    def propose(self, contexts: Sequence[Context], budgets: Sequence[int]) -> Any:
        assert not self.is_broken, "a fault of the drafter"
        return self._drafter.propose(contexts, budgets)

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        assert not self.is_broken, "a fault of the drafter"
        self._drafter.observe(contexts, verdicts)

    def restart(self) -> None:
        self._drafter.restart()


class Panic(BaseException):
    """As the exception is that a native library's panic arrives as."""


@pytest.mark.parametrize(
    "error", [RuntimeError("secret /path"), MemoryError(), AssertionError("broken"), RecursionError(), Panic("secret")]
)
def test_a_failed_step_is_a_500_that_says_nothing_of_the_inside(running: Serving, error: Exception) -> None:
    fail_at(running, 3, error)
    answer = running.post(TEXT, BODY)
    assert error_of(answer, 500)["type"] == "server_error"
    assert "secret" not in answer.text
    running.assert_idle()
    assert running.metric("step_failures_total") == 1


@pytest.mark.parametrize("place", ["step", "submit", "_hand_over", "_obey"])
def test_whatever_is_raised_on_the_engines_thread_every_job_ends_and_new_ones_are_taken(
    place: str, running: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = running.server._service.engine
    owner: Any = running.llm.engine if place in ("step", "submit") else thread
    with running.brake.slowed(0.02), ThreadPoolExecutor(4) as pool, monkeypatch.context() as patch:
        jobs = [pool.submit(running.post, TEXT, BODY) for _ in range(3)]
        wait_for(lambda: running.metric("requests_running") == 2)
        real = getattr(owner, place)
        left = [Panic("secret")]

        def planted(*args: Any, **options: Any) -> Any:
            if left:
                raise left.pop()
            return real(*args, **options)

        patch.setattr(owner, place, planted)
        if place == "submit":
            jobs.append(pool.submit(running.post, TEXT, BODY))
        answers = [job.result(timeout=20) for job in jobs]
    assert {answer.status_code for answer in answers} <= {200, 500}
    failed = [answer for answer in answers if answer.status_code == 500]
    assert failed
    assert not any("secret" in answer.text for answer in failed)
    running.assert_idle()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_if_the_engines_thread_ends_every_job_does(running: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = running.server._service.engine

    def ending() -> None:
        raise Panic("the end")

    with running.brake.slowed(0.02), ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(running.post, TEXT, BODY) for _ in range(2)]
        wait_for(lambda: running.metric("requests_running") == 2)
        monkeypatch.setattr(thread, "_turn", ending)
        assert [job.result(timeout=20).status_code for job in jobs] == [500, 500]
    assert error_of(running.post(TEXT, BODY), 503)["code"] == "stopping"


def test_a_stream_that_fails_ends_with_an_error_and_is_closed(running: Serving) -> None:
    """D-SV-14: at token 3; the client's own library raises, and nothing looks like a whole answer."""
    fail_at(running, 3, RuntimeError("planted"))
    with running.http() as client, client.stream("POST", TEXT, json={**BODY, "stream": True}) as stream:
        events = list(read_events(stream))
    assert [set(event) for event in events[-1:]] == [{"error"}]
    assert 1 <= len(events) - 1 <= 2
    fail_at(running, 3, RuntimeError("planted"))
    with running.openai() as official, pytest.raises(openai.APIError):
        list(official.completions.create(model=running.llm.name, prompt="Once", max_tokens=30, stream=True))
    running.assert_idle()


def test_only_those_in_the_failed_step_are_told(running: Serving) -> None:
    """Two run and two wait: the step of the two fails, the other two are answered."""
    running.brake.hold()
    fail_at(running, 2, RuntimeError("planted"))
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(running.post, TEXT, BODY) for _ in range(4)]
        wait_for(lambda: running.server._service.engine.num_reserved == 4)
        running.brake.release()
        statuses = sorted(job.result().status_code for job in jobs)
    assert statuses == [200, 200, 500, 500]
    running.assert_idle()


def test_a_drafter_that_is_broken_altogether_leaves_nothing_behind(running: Serving) -> None:
    engine = running.llm.engine
    broken = Broken(engine.drafter)
    engine.drafter = broken
    for body in (BODY, {**BODY, "n": 4}):
        error_of(running.post(TEXT, body), 500)
    wait_for(running.is_idle)
    broken.is_broken = False
    running.assert_idle()


def test_a_scheduler_that_fails_does_not_spin(running: Serving) -> None:
    """Nobody took part in the step: then all are told, rather than nobody for ever."""
    scheduler = running.llm.engine.scheduler
    next_batch = scheduler.next_batch

    def failing() -> Any:
        raise RuntimeError("planted")

    scheduler.next_batch = failing  # type: ignore[method-assign]
    error_of(running.post(CHAT, {"messages": [{"role": "user", "content": "Hi"}]}), 500)
    scheduler.next_batch = next_batch  # type: ignore[method-assign]
    running.assert_idle()


def test_a_submission_that_fails_is_a_500(running: Serving) -> None:
    submit = running.llm.engine.submit

    def failing(*_: Any) -> list[Delta]:
        raise RuntimeError("planted")

    running.llm.engine.submit = failing  # type: ignore[assignment, method-assign]
    error_of(running.post(TEXT, {**BODY, "n": 3}), 500)
    running.llm.engine.submit = submit  # type: ignore[method-assign]
    running.assert_idle()
