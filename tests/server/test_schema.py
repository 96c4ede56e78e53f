"""Schemathesis on our own OpenAPI document: whatever it makes up, no answer is a 5xx or unlike the document.

A few examples by default; `make schemathesis` runs every phase with a hundred per operation.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support.serving import serving

# Not `positive_data_acceptance`: what fits the model's vocabulary and context, JSON Schema cannot say.
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "missing_required_header", "unsupported_method",
)  # fmt: skip
# A body that is too long is refused before anyone looks into it.
SETTINGS = "[checks.negative_data_rejection]\nexpected-statuses = [400, 401, 403, 404, 405, 408, 413, 429]\n"
FEW = 10


def test_every_answer_is_as_documented(model_path: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    many = pytestconfig.getoption("--schema-examples")
    phases = ("--phases", "examples,coverage,fuzzing" if many else "fuzzing", "--max-examples", str(many or FEW))
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    # Slow answers are not what is looked for: few tokens, and no waiting.
    with serving(model_path, slots=4, context=256, defaults={"max_tokens": 4}) as running:
        done = subprocess.run(
            [
                sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
                "run", f"{running.url}/openapi.json", "--mode", "all", "--checks", ",".join(CHECKS), "--seed", "1",
                "--generation-database", "none", "--max-response-time", "10", *phases,
            ],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        answered = {path: running.metric("http_requests_total", path=path, status="200") for path in PATHS}
        assert not many or all(answered.values()), answered
        assert running.metric("generated_tokens_total") > 0
        running.assert_idle()


PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/models", "/health", "/metrics")


def test_the_document_says_what_each_endpoint_takes(model_path: Path) -> None:
    with serving(model_path) as running:
        document = httpx.get(f"{running.url}/openapi.json").json()
    assert set(document["paths"]) == {*PATHS, "/v1/models/{model}"}
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["additionalProperties"] is False
    assert chat["required"] == ["messages"]
    assert chat["properties"]["model"]["enum"] == [running.llm.name, None]
    limits = chat["properties"]["temperature"]["anyOf"][0]
    assert (limits["minimum"], limits["maximum"]) == (0, 100)
