"""`benchmarks/structured_json.py`: it finds the schemas in the prompts, and its counts are those of the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.tiny import tiny_config, write_gguf

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "structured_json.py"
FLAG = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
TIGHT = {"x-guidance": {"whitespace_flexible": False}}
FUNCTIONS = [{"name": "a.b", "parameters": {"type": "dict", "properties": {"x": {"type": "float"}}, **TIGHT}}]


def run(tmp_path: Path, prompts: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    model = write_gguf(tmp_path / "tiny.gguf", config=tiny_config(context_length=4096))
    lines = [json.dumps({"id": f"p{i}", "turns": [prompt]}) for i, prompt in enumerate(prompts)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    command = [sys.executable, str(SCRIPT), str(model), "--prompts", str(tmp_path / "prompts.jsonl"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def fenced(schema: Any) -> str:
    return f"Answer:\n```json\n{json.dumps(schema)}\n```"


def test_answers_are_counted_as_what_they_are(tmp_path: Path) -> None:
    """One is valid, one is not enforced in full and may be anything, and one is cut off."""
    prompts = [
        fenced(FLAG | TIGHT),
        fenced({"type": "string", "maxLength": 2, "not": {"type": "string"}}),
        fenced({"type": "string", "minLength": 900}),
    ]
    out = tmp_path / "out.json"
    done = run(tmp_path, prompts, "--plain", "--max-tokens", "60", "--out", str(out))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    counts = {"answers": 3, "enforced_in_full": 2, "parse": 2, "valid": 1, "cut": 1, "equal_plain": 3}
    assert {name: result[name] for name in counts} == counts
    answers = json.loads(out.read_text())["by_answer"]
    assert [answer["is_valid"] for answer in answers] == [True, False, False]
    assert result["tokens"] == sum(answer["tokens"] for answer in answers)
    assert result["tokens_per_step"] > 1


def test_functions_make_a_schema_too(tmp_path: Path) -> None:
    done = run(tmp_path, [f"Call.\n\nFunctions:\n{json.dumps(FUNCTIONS)}\n\nRequest: x"], "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["enforced_in_full"] == 1


@pytest.mark.parametrize("prompt", ["Answer.", fenced(["a"]), "Functions:\n[{}]", "```json\n{\n```"])
def test_prompts_without_a_schema_are_refused(tmp_path: Path, prompt: str) -> None:
    done = run(tmp_path, [prompt])
    assert done.returncode != 0
    assert "DataFileError" in done.stderr
