"""Chat templates, run in a sandbox whose work is counted.

In: a Jinja template from a model file, and its variables. Out: text. A template is somebody's program: every loop, call,
filter and operator is charged by the size of what it touches, so none runs long or fills the memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from draftgraph.errors import ChatTemplateError

_BASE_WORK = 200_000  # under a second
_WORK_PER_CHARACTER = 20  # of template and variables
_CHARACTERS_PER_UNIT = 64  # text is copied much faster than loops run
_MAX_BITS = 4096  # of a whole number
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "indent", "int", "items",
    "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "safe",
    "select", "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip
# Methods of str whose result may be far longer than what they are given.
_STRING_METHODS_REFUSED = ("center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill")


def render(template: str, variables: Mapping[str, Any], *, guard: str, now: datetime | None) -> str:
    """Returns the rendered template. Does not modify `variables`.

    Args:
        guard: a character that must survive in `tojson`, also where that escapes.
        now: the time for `strftime_now`; the default is the present.

    Raises:
        ChatTemplateError: the template is malformed, raises, or does too much work.
    """
    sandbox = _Sandbox(template, variables, guard, now)
    try:
        return "".join(sandbox.from_string(template).generate(variables))
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        _refuse(f"the chat template failed: {error}", error)
    except (RecursionError, MemoryError) as error:
        _refuse("the chat template never ends", error)


def _refuse(given: str, error: Exception) -> NoReturn:
    raise ChatTemplateError(
        given, "messages that the model's template accepts", "change the messages, or send a raw prompt"
    ) from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering. Owns the count of the work that is left."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, template: str, variables: Mapping[str, Any], guard: str, now: datetime | None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=pass_context(lambda _, value: self.charged(value)),
        )
        self._guard = guard
        self._now = now
        self._literal_work = 1 + len(template) // _CHARACTERS_PER_UNIT
        self._work_left = _BASE_WORK + _WORK_PER_CHARACTER * len(template)
        self._work_left += _WORK_PER_CHARACTER * _CHARACTERS_PER_UNIT * self._weigh(dict(variables))
        self.globals = {
            "range": self._range,
            "dict": dict,
            "namespace": self.globals["namespace"],
            "raise_exception": _raise,
            "strftime_now": self._strftime_now,
        }
        self.filters = {name: self._counting(self.filters[name]) for name in _FILTERS}
        self.filters["join"] = self._counting(self._join)
        self.filters["indent"] = self._counting(_indent)
        self.filters["tojson"] = self._counting(self._tojson)
        self.filters |= {"counted": self._counted, "charged": self.charged, "concatenated": self._concatenated}
        self.tests = {name: self._counting(test) for name, test in self.tests.items()}

    def spend(self, work: int) -> None:
        """Takes `work` from what is left, or raises SecurityError."""
        self._work_left -= work
        if self._work_left < 0:
            raise SecurityError("the template does too much work")
