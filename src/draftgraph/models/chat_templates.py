"""Which chat template a chat goes through.

In: the templates that a model file names, or what the user asked for in their place. Out: `ChatTemplates`, from which
each chat takes one. It must never know messages or vocabularies, nor what a template's text means.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftgraph.errors import ChatTemplateError
from draftgraph.models.template import MAX_TEMPLATE, check_template

DEFAULT, TOOL_USE = "default", "tool_use"
_MAX_BYTES = 4 * MAX_TEMPLATE  # of UTF-8
_FALLBACK = "chatml"


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The chat templates of a model, by name.

    Args:
        end: the text that ends a turn, where no model file says what does.
        warning: what users of these templates should know.
    """

    by_name: Mapping[str, str]
    end: str = ""
    warning: str = ""

    def choose(self, tools: Any) -> str:
        """Returns the template for a chat: with tools the one for them, if there is one, as in transformers.

        Warns, once, where the model has no template of its own.

        Raises:
            ChatTemplateError: there are templates, but none that is meant for such a chat.
        """
        if self.warning:
            warnings.warn(self.warning, stacklevel=2)
        name = TOOL_USE if tools is not None and TOOL_USE in self.by_name else DEFAULT
        if name not in self.by_name:
            raise ChatTemplateError(
                f"a chat without a choice between the model's chat templates, none of which is named {DEFAULT}",
                ", ".join(sorted(self.by_name)),
                "name one of them with chat_template= (--chat-template)",
            )
        return self.by_name[name]


# Templates that need no file, by name.
BUILT_IN: Mapping[str, ChatTemplates] = MappingProxyType(
    {
        _FALLBACK: ChatTemplates(
            {
                DEFAULT: "{% for message in messages %}"
                "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
                "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
            },
            end="<|im_end|>",
        )
    }
)


def own_templates(by_name: Mapping[str, str]) -> ChatTemplates:
    """Returns the templates of a model file; of one without any, the built-in `chatml` with a warning."""
    if by_name:
        return ChatTemplates(by_name)
    return replace(
        BUILT_IN[_FALLBACK],
        warning=f"the model has no chat template; chats use the built-in {_FALLBACK!r}, which it may not know. "
        "Name another with chat_template= (--chat-template), or send raw prompts",
    )


def asked_templates(asked: str, by_name: Mapping[str, str]) -> ChatTemplates:
    """Returns the one template that the user asked for: a name of the model's own, a built-in name, or a Jinja file.

    Raises:
        ChatTemplateError: it is none of these, or no template.
    """
    if asked in by_name:
        return ChatTemplates({DEFAULT: by_name[asked]})
    if asked in BUILT_IN:
        return BUILT_IN[asked]
    text = _read(asked, [*sorted(by_name), *BUILT_IN])
    check_template(text)
    return ChatTemplates({DEFAULT: text})


def _read(asked: str, names: list[str]) -> str:
    path = Path(os.path.expanduser(asked))
    allowed = f"a Jinja file in UTF-8 of at most {_MAX_BYTES} bytes, or a name: {', '.join(names)}"
    try:
        if not path.is_file():
            given = "not a file" if path.exists() else "no such file"
            raise ChatTemplateError(f"chat_template={asked!r}: {given}", allowed, "check the path")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ChatTemplateError(f"chat_template={asked!r}: it is too large", allowed, "check the path")
        return data.decode().removeprefix("\ufeff")
    except (OSError, ValueError) as error:  # not readable, not UTF-8, or a path that no file can have
        raise ChatTemplateError(f"chat_template={asked!r}: {error}", allowed, "give another file") from error
