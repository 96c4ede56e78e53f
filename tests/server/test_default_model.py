"""`draftgraph serve smollm2-135m` and the official client: the text is that of `draftgraph generate`; answers in JSON,
calls and log-probabilities are the same with drafts as without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from support.commands import command
from support.serving import serving

pytestmark = pytest.mark.model
QUESTION = "Why is the sky blue?"


@pytest.mark.parametrize("sampling", [{"seed": 3}, {"seed": 3, "temperature": 0.8, "top_p": 0.95}])
def test_the_official_client_streams_what_generate_writes(smollm2_path: Path, sampling: dict[str, float]) -> None:
    options = [part for name, value in sampling.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    written = command("generate", smollm2_path, "-p", QUESTION, "--max-tokens", "24", "--json", *options).json
    with serving(smollm2_path) as running, running.openai() as client:
        stream = client.chat.completions.create(
            model=running.llm.name,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=sampling,
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == written["text"]
    assert chunks[-1].usage.completion_tokens == written["completion_tokens"]
    assert chunks[-1].usage.prompt_tokens == written["prompt_tokens"]


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "array", "items": {"enum": ["Monday", "Tuesday", "Wednesday"]}, "minItems": 2, "maxItems": 3},
        "rain": {"type": "boolean"},
    },
    "required": ["city", "days", "rain"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMS: dict[str, dict[str, Any]] = {
    "an answer": {"response_format": {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA}}},
    "a call": {
        "tools": [{"type": "function", "function": {"name": "report", "parameters": SCHEMA}}],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_and_calls_fit_their_schema_and_owe_nothing_to_drafts(smollm2_path: Path, form: str) -> None:
    """Also their log-probabilities; and the grammar's forced tokens make steps of several."""
    asked = {"messages": [{"role": "user", "content": "Report the weather of Paris."}], "logprobs": True,
             "top_logprobs": 2, "max_tokens": 120, "seed": 1, **FORMS[form]}  # fmt: skip
    with serving(smollm2_path, budget=8) as running, running.openai() as client:
        for temperature in (0.0, 0.8):
            replies = [
                client.chat.completions.create(
                    model=running.llm.name, temperature=temperature, extra_body=more, **asked
                )
                for more in ({}, {"draft": "off"})
            ]
            drafted, plain = (reply.choices[0] for reply in replies)
            message = drafted.message
            text = message.content if form == "an answer" else message.tool_calls[0].function.arguments
            jsonschema_rs.validate(SCHEMA, json.loads(text))
            assert drafted.logprobs == plain.logprobs
            assert drafted.finish_reason == ("stop" if form == "an answer" else "tool_calls")
            assert replies[0].usage.draft["tokens_per_step"] > 1.2
            assert replies[1].usage.draft["tokens_per_step"] == 1
