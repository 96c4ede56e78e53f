"""`draftgraph serve smollm2-135m` and the official client: the text is that of `draftgraph generate`."""

from __future__ import annotations

from pathlib import Path

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
