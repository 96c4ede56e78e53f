"""The audit: is the text with drafts the text without, token for token?

In: a model and prompts. Out: a typed report. Plain decoding runs each prompt alone; with drafts, all prompts run
together, so the audit covers batching too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftgraph.data import DataPrompt
from draftgraph.llm import LLM, Completion, Prompt

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place where two texts part.

    Args:
        position: index of the first token that differs.
        plain, drafted: the text of that token and a few after it; empty where a text had ended.
    """

    prompt: str
    position: int
    plain: str
    drafted: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Args:
        tokens: tokens compared.
        tokens_per_step: tokens emitted per target pass with drafts, over all prompts.
    """

    prompts: int
    tokens: int
    mismatches: tuple[Mismatch, ...]
    tokens_per_step: float

    def to_json(self) -> dict[str, Any]:
        """Returns the published form."""
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "mismatches": len(self.mismatches),
            "tokens_per_step": round(self.tokens_per_step, 4),
        }


def audit(llm: LLM, prompts: Sequence[tuple[str, Prompt]], report: Report, **sampling: Any) -> Audit:
    """Writes every prompt with budget 0 and with drafts, and compares ids, text and finish reason.

    Args:
        prompts: (name, prompt) pairs.
        report: told what is running.
        sampling: fields of `SamplingParams`, with a seed where the temperature is not 0.
    """
    plain = []
    for number, (name, prompt) in enumerate(prompts, start=1):
        report(f"plain decoding, prompt {number} of {len(prompts)} ({name})")
        plain.append(llm.generate(prompt, budget=0, **sampling))
    report(f"with drafts, {len(prompts)} prompts together")
    drafted: list[Completion] = llm.generate([prompt for _, prompt in prompts], **sampling)
    found = [
        mismatch
        for (name, _), one, other in zip(prompts, plain, drafted, strict=True)
        if (mismatch := _compare(llm, name, one, other)) is not None
    ]
    passes = sum(completion.stats.target_passes for completion in drafted)
    later_tokens = sum(completion.completion_tokens - 1 for completion in drafted)
    return Audit(
        prompts=len(prompts),
        tokens=sum(completion.completion_tokens for completion in plain),
        mismatches=tuple(found),
        tokens_per_step=later_tokens / passes if passes else 0.0,
    )


def as_prompts(prompts: Sequence[DataPrompt], *, raw: bool) -> list[tuple[str, Prompt]]:
    """Returns (id, prompt) pairs: texts as they are, or each as the first message of a chat."""
    return [(prompt.id, as_prompt(prompt, raw=raw)) for prompt in prompts]


def as_prompt(prompt: DataPrompt, *, raw: bool) -> Prompt:
    """Returns the text as it is, or as the first message of a chat."""
    return prompt.text if raw else as_chat(prompt.text)


def as_chat(text: str) -> list[dict[str, str]]:
    """Returns the messages of a chat that begins with `text`."""
    return [{"role": "user", "content": text}]


def _compare(llm: LLM, name: str, plain: Completion, drafted: Completion) -> Mismatch | None:
    same = (plain.token_ids, plain.text, plain.finish_reason) == (
        drafted.token_ids,
        drafted.text,
        drafted.finish_reason,
    )
    if same:
        return None
    pairs = list(zip(plain.token_ids, drafted.token_ids, strict=False))
    position = next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))
    label = llm.model.tokenizer.token_label
    return Mismatch(
        name,
        position,
        "".join(map(label, plain.token_ids[position : position + 8])),
        "".join(map(label, drafted.token_ids[position : position + 8])),
    )
