"""Whatever is sent: a 4xx of OpenAI's shape that names the field, and a server that answers as ever afterwards."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.serving import CHAT, TEXT, Serving, error_of, raw, request_bytes, wait_for

ASKED = [{"role": "user", "content": "Hi"}]
JSON_TYPE = {"content-type": "application/json"}


@pytest.fixture(autouse=True, scope="module")
def _alive_afterwards(shared: Serving) -> Iterator[None]:
    yield
    shared.assert_idle()


@pytest.mark.parametrize("endpoint", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{:", b"null", b"[]", b"1", b'"text"', b'{"prompt": "\xff"}', b'{"prompt": "\xe4\xb8',
        b'\xef\xbb\xbf{"prompt": "a"}', gzip.compress(b'{"prompt": "a"}'), b"[" * 2**19, b'{"a":' * 10_000,
        b'{"prompt": "\\ud800"}', b'{"prompt": "\\udc00\\ud800"}', b'{"prompt": "a", "prompt": "b"}', b"\x00",
        b'{"prompt": "a"} x', '{"prompt": "a"}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_bodies_that_are_no_object_in_json_are_refused(shared: Serving, endpoint: str, body: bytes) -> None:
    """D-SV-01."""
    with shared.http() as client:
        error_of(client.post(endpoint, content=body, headers=JSON_TYPE), 400)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_only_json_is_taken(shared: Serving, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    with shared.http() as client:
        error = error_of(client.post(TEXT, content=b'{"prompt": "a"}', headers=headers), 400)
    assert "allowed: application/json" in error["message"]


@pytest.mark.parametrize("field", ["unknown", "tools", "response_format", "messages"])
@pytest.mark.parametrize("depth", [64, 500, 3_000, 10_000, 100_000])
def test_deeply_nested_bodies_are_refused(shared: Serving, field: str, depth: int) -> None:
    """D-SV-02."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        nested = f'{{"messages": [], "{field}": {opening * depth}1{closing * depth}}}'.encode()
        with shared.http() as client:
            error_of(client.post(CHAT, content=nested, headers=JSON_TYPE), 400)


NUMBERS = (
    "temperature", "top_p", "min_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "max_tokens", "n",
)  # fmt: skip


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", '"NaN"', '"1"', "1e400", "-1e400", "-101", "true", "[]", "{}",
              "9" * 30, "9" * 5000, "1e19"],
)  # fmt: skip
def test_numbers_that_are_none_or_out_of_range_are_refused(shared: Serving, field: str, value: str) -> None:
    """D-SV-03, D-SV-06."""
    body = f'{{"messages": [{{"role": "user", "content": "Hi"}}], "{field}": {value}}}'.encode()
    with shared.http() as client:
        error = error_of(client.post(CHAT, content=body, headers=JSON_TYPE), 400)
    assert error["param"] in (field, None)


@pytest.mark.parametrize(
    "bias", ['{"303": 1}', '{"99999": 1}', '{"-1": 1}', '{"abc": 1}', '{"9223372036854775808": 1}', '{"01": 1}',
             '{"1": 1e9}', '{"1": NaN}', '{"1": null}', '{"1": "1"}', "[]", '{"": 1}', '{" 1": 1}'],
)  # fmt: skip
def test_biases_outside_the_vocabulary_or_range_are_refused(shared: Serving, bias: str) -> None:
    """D-SV-04."""
    body = f'{{"prompt": "a", "logit_bias": {bias}}}'.encode()
    with shared.http() as client:
        error_of(client.post(TEXT, content=body, headers=JSON_TYPE), 400)


@pytest.mark.parametrize(
    "prompt", ["[-1]", "[303]", "[2147483648]", "[18446744073709551616]", "[1.5]", "[true]", "[[[1]]]", '["a", 1]',
               '[1, "a"]', "[[1], 2]", "[[1], []]", "[]", "[[]]", '""', '[""]', "null", "1", "{}"],
)  # fmt: skip
def test_prompts_without_a_sound_token_are_refused(shared: Serving, prompt: str) -> None:
    """D-SV-05, D-BA-04."""
    with shared.http() as client:
        body = f'{{"prompt": {prompt}, "max_tokens": 1}}'.encode()
        error_of(client.post(TEXT, content=body, headers=JSON_TYPE), 400)


@pytest.mark.parametrize(
    "messages",
    [
        [], None, "Hi", [[]], ["Hi"], [{}], [{"role": "user"}], [{"content": "Hi"}],
        [{"role": "user", "content": None}],
        [{"role": "robot", "content": "Hi"}], [{"role": "user", "content": 1}], [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": "Hi", "more": 1}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
        [{"role": "tool", "content": "1", "tool_call_id": "x"}],
    ],
)  # fmt: skip
def test_messages_of_other_forms_are_refused(shared: Serving, messages: Any) -> None:
    """D-SV-12."""
    assert str(error_of(shared.post(CHAT, {"messages": messages}), 400)["param"]).startswith("messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", []), ("audio", {}), ("web_search_options", {}), ("verbosity", "low"), ("metadata", {}),
        ("modalities", ["audio"]), ("store", True), ("reasoning_effort", "low"), ("draft", "on"), ("temprature", 1),
        ("__class__", 1), ("service_tier", "flex"), ("prediction", {}), ("logprobs", 0), ("store", 0),
    ],
)  # fmt: skip
def test_fields_that_are_not_implemented_are_named(shared: Serving, field: str, value: Any) -> None:
    error = error_of(shared.post(CHAT, {"messages": ASKED, field: value}), 400)
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True), ("suffix", "x"), ("best_of", 3), ("best_of", True), ("echo", 0), ("tools", []),
        ("response_format", {"type": "text"}), ("top_logprobs", 3),
    ],
)  # fmt: skip
def test_fields_of_completions_that_are_not_implemented_are_named(shared: Serving, field: str, value: Any) -> None:
    assert error_of(shared.post(TEXT, {"prompt": "a", field: value}), 400)["param"] == field


@pytest.mark.parametrize("n", [0, 17, 1_000, 10**6, 10**9])
def test_very_many_choices_are_refused_at_once(shared: Serving, n: int) -> None:
    """D-SV-06: before anything is made of them; several prompts count together."""
    started = time.perf_counter()
    error_of(shared.post(CHAT, {"messages": ASKED, "n": n}), 400)
    error_of(shared.post(TEXT, {"prompt": ["a"] * 17, "n": 1}), 400)
    assert time.perf_counter() - started < 1.0


def test_prompts_longer_than_the_context_are_refused_with_both_sizes(shared: Serving) -> None:
    """D-SV-11."""
    context = shared.llm.runner.context_length
    longest = shared.post(TEXT, {"prompt": [5] * (context - 1), "max_tokens": 10})
    assert longest.json()["usage"] | {"draft": {}} == {
        "prompt_tokens": context - 1, "completion_tokens": 1, "total_tokens": context, "draft": {},
    }  # fmt: skip
    assert longest.json()["choices"][0]["finish_reason"] == "length"
    for length in (context, context + 1, 10 * context):
        error = error_of(shared.post(TEXT, {"prompt": [5] * length, "stream": True}), 400)
        assert f"{length} tokens" in error["message"]
        assert str(context) in error["message"]


@pytest.mark.parametrize(
    "model",
    ["../../etc/passwd", "/etc/passwd", "..%2F..%2Fetc%2Fpasswd", "file:///etc/passwd", "a\0b", "x" * 10_000,
     "owner/other", ""],
)  # fmt: skip
def test_a_model_is_a_name_and_nothing_else(shared: Serving, model: str) -> None:
    """D-SV-16."""
    error = error_of(shared.post(CHAT, {"messages": ASKED, "model": model}), 404)
    assert error["code"] == "model_not_found"
    assert len(json.dumps(error)) < 1_000
    with shared.http() as client:
        if model and "\0" not in model:
            answer = client.get(f"/v1/models/{model}")
            assert answer.status_code == 404
            assert str(shared.llm.model.path.parent) not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/", 405), ("GET", "/v1", 404), ("GET", CHAT, 405), ("PUT", CHAT, 405), ("DELETE", "/health", 405),
     ("OPTIONS", CHAT, 405), ("POST", "/v1/embeddings", 404), ("GET", "/%00", 404), ("GET", "/docs", 404)],
)  # fmt: skip
def test_other_paths_and_methods_have_errors_of_the_same_shape(
    shared: Serving, method: str, path: str, status: int
) -> None:
    with shared.http() as client:
        error_of(client.request(method, path), status)


@pytest.mark.parametrize("megabytes", [2, 8])
def test_bodies_over_the_limit_are_refused_before_they_are_read(shared: Serving, megabytes: int) -> None:
    """D-SV-18: an honest length, none (chunked), and one that is a lie."""
    refused = shared.metric("http_requests_total", path=TEXT, status="413")
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    with raw(shared.url, head + f"Content-Length: {megabytes * 2**20}\r\n\r\n".encode()) as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 413")
    with raw(shared.url, head + b"Transfer-Encoding: chunked\r\n\r\n") as connection, contextlib.suppress(OSError):
        for _ in range(16 * megabytes):  # until the server closes the connection
            connection.sendall(b"10000\r\n" + b" " * 2**16 + b"\r\n")
    wait_for(lambda: shared.metric("http_requests_total", path=TEXT, status="413") == refused + 2)
    lie = head + b"Content-Length: 15\r\n\r\n" + b'{"prompt":"a" }' + b" " * 4096
    with raw(shared.url, lie) as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX Y: 1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_bytes_that_are_no_request_get_a_400(shared: Serving, junk: bytes) -> None:
    with raw(shared.url, junk) as connection:
        assert _all_of(connection).startswith(b"HTTP/1.1 400")


def test_heads_without_an_end_are_refused(shared: Serving) -> None:
    """Also behind a request that is still being answered; a long one that ends is read."""
    begun = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    answered = request_bytes(TEXT, {"prompt": "a", "max_tokens": 4})
    for before in (b"", answered):
        with raw(shared.url, before + begun) as connection, contextlib.suppress(ConnectionError):
            for number in range(200):
                connection.sendall(b"X-%d: " % number + b"a" * 1000 + b"\r\n")
            assert b"HTTP/1.1 400" in _all_of(connection)
    with raw(shared.url, begun + b"X: " + b"a" * 30_000 + b"\r\nConnection: close\r\n\r\n") as connection:
        assert _all_of(connection).startswith(b"HTTP/1.1 200")


def test_a_client_that_offers_http2_is_answered_in_http1(shared: Serving) -> None:
    """Some clients send this with every request, its body included, such as Java's own. (httptools skips the body.)"""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with raw(shared.url, request_bytes(TEXT, {"prompt": "a", "max_tokens": 4}, offer)) as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")


def test_requests_sent_ahead_are_answered_in_order(shared: Serving) -> None:
    ahead = request_bytes(TEXT, {"prompt": "a", "max_tokens": 4})
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with raw(shared.url, ahead + ahead + last) as connection:
        answers = _all_of(connection).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 3
    assert [b"text_completion" in answer for answer in answers] == [True, True, False]


def _all_of(connection: socket.socket) -> bytes:
    """Returns what comes until the server closes the connection."""
    with connection.makefile("rb") as answer:
        return answer.read()


def test_bytes_of_no_character_in_a_text_are_still_json(shared: Serving) -> None:
    """D-SV-13: the tiny model writes stray bytes at a high temperature."""
    for seed in range(8):
        reply = shared.post(TEXT, {"prompt": [7], "temperature": 100.0, "seed": seed, "max_tokens": 64})
        assert reply.status_code == 200
        assert "choices" in json.loads(reply.content.decode())
