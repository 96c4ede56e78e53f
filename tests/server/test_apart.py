"""What clients with different keys, or different cache salts, can find out of each other: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftgraph.errors import ParameterError
from draftgraph.server.security import cache_salt, check_memory
from support.commands import command, error_of
from support.serving import TEXT, Serving, serving

KEYS = "first-key-of-24-characters", "other-key-of-24-characters"
SECRET = "The secret of the first client is long enough to fill some blocks of the key-value cache."


@pytest.fixture(scope="module")
def two_keys(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("\n".join(KEYS))
    file.chmod(0o600)
    with serving(model_path, slots=2, server={"api_key_file": str(file)}) as running:
        yield running


def reused(running: Serving, key: str, prompt: str, **more: Any) -> int:
    """How much of a prompt was found in memory, as its client is told."""
    body = {"prompt": prompt, "max_tokens": 2, **more}
    answer = running.post(TEXT, body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["draft"]["reused_tokens"])


def test_a_guess_of_what_another_key_has_sent_finds_nothing(two_keys: Serving) -> None:
    assert reused(two_keys, KEYS[0], SECRET) == 0
    assert reused(two_keys, KEYS[0], SECRET) > 40
    assert reused(two_keys, KEYS[1], SECRET) == 0
    assert reused(two_keys, KEYS[1], SECRET) > 40


def test_a_salt_keeps_a_clients_own_users_apart(two_keys: Serving) -> None:
    prompt = SECRET + " And of its users."
    assert reused(two_keys, KEYS[0], prompt, cache_salt="one") == 0
    assert reused(two_keys, KEYS[0], prompt, cache_salt="one") > 40
    assert reused(two_keys, KEYS[0], prompt, cache_salt="two") == 0
    assert reused(two_keys, KEYS[1], prompt, cache_salt="one") == 0


def test_without_keys_a_salt_does_the_same_and_changes_no_text(shared: Serving) -> None:
    texts = set()
    for salt in (None, "a", "a", "b", ""):
        body = {"prompt": SECRET + " Nobody's.", "max_tokens": 8, "cache_salt": salt}
        texts.add(shared.post(TEXT, body).json()["choices"][0]["text"])
    assert len(texts) == 1
    assert cache_salt({}, "") == b""
    assert len({cache_salt({}, "a"), cache_salt({}, "b"), cache_salt({"draftgraph.key": b"k"}, "a"), b""}) == 4


def test_a_draft_models_cache_is_kept_apart_too(model_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(KEYS))
    file.chmod(0o600)
    options = {"draft": f"model:{model_path}", "budget": 4}
    with serving(model_path, slots=2, server={"api_key_file": str(file)}, **options) as running:
        member = running.llm.engine.drafter.members["model"]  # type: ignore[attr-defined]
        found: list[int] = []
        reuse = member._runner.reuse
        member._runner.reuse = lambda slot, tokens: found.append(reuse(slot, tokens)) or found[-1]
        for key in (KEYS[0], KEYS[0], KEYS[1]):
            reused(running, key, SECRET, max_tokens=8)
    first, again, other = found
    assert (first, other) == (0, 0)
    assert again > 40


def test_a_memory_of_everybodys_texts_is_refused_with_several_keys(tmp_path: Path) -> None:
    check_memory("process", [b"one"])
    check_memory("process", [])
    check_memory("request", [b"one", b"two"])
    with pytest.raises(ParameterError, match="--memory process with 2 keys"):
        check_memory("process", [b"one", b"two"])
    file = tmp_path / "keys"
    file.write_text("\n".join(KEYS))
    file.chmod(0o600)
    outcome = command("serve", "no-such-model", "--api-key-file", str(file), "--memory", "process", "--json")
    assert outcome.code == 2
    assert "--memory process with 2 keys" in str(error_of(outcome))
