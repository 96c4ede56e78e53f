"""Chat templates, run in a sandbox whose work is counted.

In: a Jinja template from a model file, and its variables. Out: text, or an error in three parts. It must never know
whose template it is, nor what its text means.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import CodeType
from typing import Any

from jinja2 import Template

from draftgraph.errors import ChatTemplateError
from draftgraph.models.sandbox import Sandbox

MAX_TEMPLATE = 2**17  # characters; compiling that many takes a second


def render(template: str, variables: Mapping[str, Any], *, guard: str, now: datetime | None) -> str:
    """Returns the rendered template. Does not modify `variables`.

    Args:
        guard: a character that must survive `tojson`, also where that escapes.
        now: the time for `strftime_now`; the default is the present.

    Raises:
        ChatTemplateError: the template is malformed, raises, or does too much work.
    """
    _check_length(template)
    try:
        code = _compiled(template)
        sandbox = Sandbox(len(template), variables, guard, now)
        return "".join(Template.from_code(sandbox, code, sandbox.globals).generate(variables))
    except Exception as error:  # a template can raise anything
        endless = isinstance(error, (RecursionError, MemoryError))
        raise ChatTemplateError(
            f"the chat template failed: {'it never ends' if endless else error}",
            "messages that the model's template accepts",
            "change the messages, or send a raw prompt",
        ) from error


def check_template(template: str) -> None:
    """Raises ChatTemplateError if `template` is too long or no Jinja template."""
    _check_length(template)
    try:
        _compiled(template)
    except Exception as error:
        raise ChatTemplateError(
            f"the chat template is no Jinja template: {error}", "a template that can be compiled", "correct it"
        ) from error


def _check_length(template: str) -> None:
    if len(template) > MAX_TEMPLATE:
        raise ChatTemplateError(
            f"a chat template of {len(template)} characters", f"at most {MAX_TEMPLATE}", "send a raw prompt instead"
        )


@lru_cache(maxsize=8)  # a server has one; compiling it takes longer than reading the prompt of a small model
def _compiled(template: str) -> CodeType:
    """Returns a template as code, which any sandbox can run: it holds no values of one."""
    code: CodeType = Sandbox(len(template), {}, guard="", now=None).compile(template)
    return code
