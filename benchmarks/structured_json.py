"""Answers under JSON schemas, drafted: how many parse and are valid, and what a target pass brings.

    python benchmarks/structured_json.py MODEL --prompts FILE.jsonl [--draft …] [--limit N] [--plain] [--out FILE.json]

In: JSON lines such as {"id": …, "turns": ["…"]}. A prompt holds the schema of its answer in a block ```json, or after
"Functions:" a list of functions (name, parameters) whose calls are the answer: [{"name": …, "arguments": {…}}, …].
Out: a line per prompt, a summary, and last one JSON object. A schema that cannot be enforced in full is enforced as far
as it can be, and counted; answers are always checked against all of it. `--plain` writes every answer again without
drafts: the ids must be equal.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

import draftgraph as dg
from draftgraph.bench.machine import commit, machine
from draftgraph.data import DataPrompt, read_prompts
from draftgraph.errors import DataFileError, ParameterError
from draftgraph.llm import Completion

_BLOCK = re.compile(r"```json\n(.*?)\n```", re.DOTALL)
_FUNCTIONS = "Functions:\n"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_LENIENT = {"x-guidance": {"lenient": True, "coerce_one_of": True}}


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one prompt.

    Args:
        enforced: the whole schema was; otherwise what of it can be.
        steps: target passes that wrote a token after the first one.
        equals_plain: whether the ids are those without drafts; None if that was not asked.
    """

    id: str
    enforced: bool
    parses: bool
    is_valid: bool
    finish_reason: str
    tokens: int
    steps: int
    equals_plain: bool | None


def schema_of(prompt: DataPrompt) -> dict[str, Any]:
    """Returns the schema of a prompt's answer.

    Raises:
        DataFileError: there is none in it.
    """
    block = _BLOCK.search(prompt.text)
    _, marker, functions = prompt.text.partition(_FUNCTIONS)
    try:
        if block:
            found = json.loads(block[1])
        else:
            found = calls_schema(json.JSONDecoder().raw_decode(functions)[0]) if marker else None
    except (ValueError, TypeError, KeyError) as error:
        raise DataFileError(f"{prompt.id}: its schema cannot be read ({error})", "JSON", "mend it") from error
    if not isinstance(found, dict):
        raise DataFileError(f"{prompt.id} has no schema", f"a block ```json, or {_FUNCTIONS.strip()}", "add it")
    return found


def calls_schema(functions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the schema of a list of calls. Modifies nothing."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "arguments": in_json_schema(function["parameters"])},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1}


def in_json_schema(schema: Any) -> Any:
    """Returns a schema with the types that other collections write in Python's words named as JSON Schema does."""
    if isinstance(schema, list):
        return [in_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: in_json_schema(value) for key, value in schema.items()}
    if isinstance(kind := schema.get("type"), str):
        changed["type"] = _TYPES.get(kind, kind)
    if changed.get("type") == "any":
        del changed["type"]
    return changed


def ask(llm: dg.LLM, prompt: DataPrompt, schema: dict[str, Any], options: dict[str, Any]) -> tuple[Completion, bool]:
    """Returns the answer, and whether all of the schema was enforced."""
    messages = [{"role": "user", "content": prompt.text}]
    try:
        return llm.generate(messages, json_schema=schema, **options), True
    except ParameterError:
        return llm.generate(messages, json_schema=_LENIENT | schema, **options), False


def judge(llm: dg.LLM, prompt: DataPrompt, options: dict[str, Any], *, plain: bool) -> Answer:
    """Writes and checks one answer."""
    schema = schema_of(prompt)
    done, enforced = ask(llm, prompt, schema, options)
    try:
        value, parses = json.loads(done.text), True
    except ValueError:
        value, parses = None, False
    again = ask(llm, prompt, schema, {**options, "budget": 0, "seed": done.seed})[0] if plain else None
    return Answer(
        id=prompt.id,
        enforced=enforced,
        parses=parses,
        is_valid=parses and jsonschema_rs.is_valid(schema, value),
        finish_reason=str(done.finish_reason),
        tokens=done.completion_tokens,
        steps=done.stats.target_passes,
        equals_plain=None if again is None else again.token_ids == done.token_ids,
    )


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the published figures; tokens per step over all answers, their first tokens left out."""
    steps = sum(answer.steps for answer in answers)
    compared = [answer for answer in answers if answer.equals_plain is not None]
    return {
        "answers": len(answers),
        "enforced_in_full": sum(answer.enforced for answer in answers),
        "parse": sum(answer.parses for answer in answers),
        "valid": sum(answer.is_valid for answer in answers),
        "cut": sum(answer.finish_reason != "stop" for answer in answers),
        "tokens": sum(answer.tokens for answer in answers),
        "tokens_per_step": round(sum(answer.tokens - 1 for answer in answers) / steps, 4) if steps else 0.0,
        "equal_plain": sum(answer.equals_plain is True for answer in compared) if compared else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--draft", help="drafters, as for `draftgraph generate`")
    parser.add_argument("--budget", default="auto")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    budget = args.budget if args.budget == "auto" else int(args.budget)
    sampling = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    drafting: dict[str, Any] = {"budget": budget} | ({} if args.draft is None else {"draft": args.draft})
    answers: list[Answer] = []
    with dg.load(args.model, context=args.context, slots=1, **drafting) as llm:
        name = llm.name
        for prompt in read_prompts(args.prompts, args.limit):
            answers.append(judge(llm, prompt, sampling, plain=args.plain))
            print(line(answers[-1]), flush=True)
    result = {"model": name, "prompts": args.prompts.name, **drafting, **sampling, **summary(answers)}
    result |= {"machine": machine(), "commit": commit(Path(__file__))}
    if args.out:
        whole = {**result, "by_answer": [asdict(answer) for answer in answers]}
        args.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def line(answer: Answer) -> str:
    """Returns what is printed of one answer."""
    verdict = "valid" if answer.is_valid else "parses, not valid" if answer.parses else "no JSON"
    per_step = (answer.tokens - 1) / answer.steps if answer.steps else 0.0
    equal = {None: "", True: ", ids equal", False: ", IDS DIFFER"}[answer.equals_plain]
    how = answer.finish_reason if answer.enforced else f"{answer.finish_reason}, in part"
    return f"{answer.id}: {verdict} ({how}), {answer.tokens} tokens, {per_step:.2f} a step{equal}"


if __name__ == "__main__":
    main()
