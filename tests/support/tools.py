"""Chats with functions: templates that know them, functions to call, and models that say what a test wants.

In: texts. Out: the same texts, written by a real engine with all its drafting, from a model whose logits are bent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgraph.verify.distribution import TargetDistribution
from support.serving import CONTEXT
from support.tiny import CHAT_TEMPLATE, tiny_config, write_gguf

_CALLS = (
    "{% for call in message.tool_calls %}"
    '{{ \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}"
    "{% endfor %}"
)
# Calls in tags, results in tags of the user, functions in the system's words.
TAGS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\nFunctions:' }}"
    "{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    + _CALLS
    + "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The functions are shown, but calls have a form of their own.
OTHER_TEMPLATE = TAGS_TEMPLATE.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[/CALL]")
TEMPLATES = {"tags": TAGS_TEMPLATE, "other": OTHER_TEMPLATE, "none": CHAT_TEMPLATE}

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", "Oslo", "</tool_call>", 'the "City"']}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "How it will be.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time"}},
]


def write_tool_model(folder: Path, template: str) -> Path:
    """Writes the tiny model of `support.serving` with one of TEMPLATES; "two" is one for plain chats, one for tools."""
    metadata: dict[str, Any] = {"tokenizer.chat_template": TEMPLATES["none" if template == "two" else template]}
    if template == "two":
        metadata |= {"tokenizer.chat_template.tool_use": TAGS_TEMPLATE, "tokenizer.chat_templates": ["tool_use"]}
    return write_gguf(folder / f"{template}.gguf", config=tiny_config(context_length=CONTEXT), extra_metadata=metadata)


def call_text(name: str, arguments: Any) -> str:
    """Returns a call as the templates of tags write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def script(monkeypatch: pytest.MonkeyPatch, tokens: Sequence[int]) -> None:
    """Makes every model say `tokens` from its answer's start, where nothing forbids it."""
    plain = TargetDistribution._row

    def bent(self: TargetDistribution, node: int) -> Any:
        place, above = len(self._context.tokens) - self._context.num_prompt, node
        while above > self._tree.root:
            place, above = place + 1, int(self._tree.parents[above])
        row = plain(self, node).copy()
        if place < len(tokens):
            row[tokens[place]] += np.float32(1000)
        return row

    monkeypatch.setattr(TargetDistribution, "_row", bent)
