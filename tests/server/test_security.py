"""Who is answered: keys, hosts, origins, and what the server refuses to start with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftgraph.config import ServerConfig
from draftgraph.errors import DataFileError, DraftGraphError, ParameterError
from draftgraph.server.security import is_loopback, read_keys
from support.serving import CHAT, TEXT, Serving, error_of, serving

KEY, OTHER = "a-long-and-random-key", "another-key-of-this-file"
PAGE = "https://page.example"
BODY = {"prompt": "a", "max_tokens": 1}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


@pytest.fixture(scope="module")
def keyed(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"# of the staging machines\n{KEY}\n\n  {OTHER}\n", encoding="utf-8")
    keys.chmod(0o600)
    with serving(model_path, server={"api_key_file": str(keys), "cors_origin": (PAGE,)}) as running:
        yield running


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_every_key_of_the_file_opens(keyed: Serving, key: str) -> None:
    assert keyed.post(TEXT, BODY, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert keyed.post(TEXT, BODY, headers={"authorization": f"bearer {key}"}).status_code == 200
    with keyed.openai(key) as client:
        assert client.models.list().data


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer {KEY} x",
     f"Bearer {KEY},{OTHER}", "Bearer # of the staging machines", "Bearer \xff\xfe"],
)  # fmt: skip
@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/models", "/metrics", "/openapi.json", "/tokenize", "/nothing"])
def test_without_a_key_every_path_is_shut(keyed: Serving, header: str | None, path: str) -> None:
    """D-SV-15: and the body is not even looked at."""
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    with keyed.http() as client:
        answer = client.post(path, content=b"{", headers=headers)
    error = error_of(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY not in answer.text


def test_health_needs_no_key(keyed: Serving) -> None:
    with keyed.http() as client:
        assert client.get("/health").status_code == 200


def test_preflights_need_no_key_and_errors_have_their_headers(keyed: Serving) -> None:
    """D-SV-15."""
    with keyed.http() as client:
        preflight = client.options(CHAT, headers={"origin": PAGE, **PREFLIGHT})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        assert "access-control-allow-credentials" not in preflight.headers
        assert client.options(CHAT, headers={"origin": "https://other.example", **PREFLIGHT}).status_code == 400
        error_of(client.options(CHAT), 401)
        refused = client.get("/v1/models", headers={"origin": PAGE})
        error_of(refused, 401)
        assert refused.headers["access-control-allow-origin"] == PAGE
        other = client.get("/v1/models", headers={"origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_pages_of_elsewhere_are_refused_where_there_are_no_keys(shared: Serving) -> None:
    with shared.http() as client:
        for method, path in (("GET", "/v1/models"), ("POST", TEXT), ("OPTIONS", CHAT), ("GET", "/metrics")):
            answer = client.request(method, path, headers={"origin": PAGE, **PREFLIGHT})
            assert error_of(answer, 403)["code"] == "origin"
            assert "access-control-allow-origin" not in answer.headers
        assert error_of(client.get("/v1/models", headers={"origin": "null"}), 403)["code"] == "origin"
        assert client.get("/v1/models", headers={"origin": shared.url}).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [("localhost", True), ("LOCALHOST:80", True), ("127.0.0.1", True), ("127.0.0.1:1", True), ("[::1]:8000", True),
     ("192.168.1.5", True), ("rebound.example", False), ("rebound.example:8000", False), ("localhost.example", False),
     ("127.0.0.1.example", False), ("", False), ("a b", False), ("[::1].example", False), ("my.machine", False)],
)  # fmt: skip
def test_only_addresses_and_localhost_are_hosts(shared: Serving, host: str, is_answered: bool) -> None:
    """A page that rebinds its own name to 127.0.0.1 sends that name."""
    with shared.http() as client:
        answer = client.get("/v1/models", headers={"host": host})
    if is_answered:
        assert answer.status_code == 200
    else:
        assert error_of(answer, 403)["code"] == "host"


def test_names_and_pages_that_were_given_are_answered(model_path: Path) -> None:
    given = {"trusted_host": ("My.Machine",), "cors_origin": ("http://localhost:3000",)}
    with serving(model_path, server=given) as running, running.http() as client:
        assert client.get("/v1/models", headers={"host": "my.machine:80"}).status_code == 200
        answer = client.get("/v1/models", headers={"origin": "http://localhost:3000"})
        assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
        error_of(client.get("/v1/models", headers={"origin": "http://localhost:3001"}), 403)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_a_public_address_needs_keys_or_a_word(host: str, is_local: bool) -> None:
    assert is_loopback(host) == is_local
    if is_local:
        assert read_keys(ServerConfig(host=host)) == ()
    else:
        with pytest.raises(ParameterError, match="--api-key-file"):
            read_keys(ServerConfig(host=host))
    assert read_keys(ServerConfig(host=host, allow_public=True)) == ()


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "# only a remark\n", "short\n", f"{KEY}\nshort\n", "key with blanks in it\n", "schlüssel" * 3],
)  # fmt: skip
def test_key_files_without_good_keys_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ParameterError) as refused:
        read_keys(ServerConfig(api_key_file=str(file)))
    assert all(line not in str(refused.value) for line in text.split("\n") if line)


def test_a_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFileError):
        read_keys(ServerConfig(api_key_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    "fields",
    [{"port": -1}, {"port": 65536}, {"queue": -1}, {"time_limit": 0.0}, {"max_body": 1}, {"max_choices": 0},
     {"grace": float("nan")}, {"allow_public": "yes"}, {"trusted_host": "name"}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DraftGraphError):
        ServerConfig(**fields)


def test_every_origin_at_once_needs_keys() -> None:
    with pytest.raises(ParameterError, match="--cors-origin"):
        read_keys(ServerConfig(cors_origin=("*",)))


def test_nothing_of_a_prompt_is_logged(shared: Serving, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="draftgraph.server")
    caplog.set_level("DEBUG", logger="uvicorn")
    for body in (
        {"prompt": "my secret", "max_tokens": 2},
        {"prompt": ["my secret"], "n": -1},
        {"prompt": 1, "my secret": 2},
    ):
        shared.post(TEXT, body)
    assert "my secret" not in caplog.text
