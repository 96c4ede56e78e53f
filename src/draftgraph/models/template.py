"""Chat templates, run in a sandbox whose work is counted.

In: a Jinja template from a model file, and its variables. Out: text. A template is somebody's program: every loop,
call, filter and operator is charged by the size of what it touches, so none runs long or fills the memory. What cannot
be charged beforehand, such as padding to any width, is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from functools import lru_cache, wraps
from types import CodeType
from typing import Any

from jinja2 import Template, TemplateError, filters, nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from draftgraph.errors import ChatTemplateError

_MAX_TEMPLATE = 2**20
_BASE_WORK = 200_000  # about a second
_WORK_PER_UNIT = 200  # for each unit of the variables
_CHARACTERS_PER_UNIT = 64  # text is copied much faster than loops run
_MAX_BITS = 4096  # of a whole number
_MAX_INDENT = 64
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select", "selectattr",
    "sort", "string", "title", "trim", "unique", "upper",
)  # fmt: skip
_REFUSED_STRING_METHODS = (
    "center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill",
)  # fmt: skip


def render(template: str, variables: Mapping[str, Any], *, guard: str, now: datetime | None) -> str:
    """Returns the rendered template. Does not modify `variables`.

    Args:
        guard: a character that must survive `tojson`, also where that escapes.
        now: the time for `strftime_now`; the default is the present.

    Raises:
        ChatTemplateError: the template is malformed, raises, or does too much work.
    """
    if len(template) > _MAX_TEMPLATE:
        raise ChatTemplateError(
            f"a chat template of {len(template)} characters", f"at most {_MAX_TEMPLATE}", "send a raw prompt instead"
        )
    try:
        code = _compiled(template)
        sandbox = _Sandbox(len(template), variables, guard, now)
        return "".join(Template.from_code(sandbox, code, sandbox.globals).generate(variables))
    except Exception as error:  # a template can raise anything
        endless = isinstance(error, (RecursionError, MemoryError))
        raise ChatTemplateError(
            f"the chat template failed: {'it never ends' if endless else error}",
            "messages that the model's template accepts",
            "change the messages, or send a raw prompt",
        ) from error


@lru_cache(maxsize=8)  # a server has one; compiling it takes longer than reading the prompt of a small model
def _compiled(template: str) -> CodeType:
    """Returns a template as code, which any sandbox can run: it holds no values of one."""
    code: CodeType = _Sandbox(len(template), {}, guard="", now=None).compile(template)
    return code


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering. Owns the count of the work that is left.

    Args:
        length: of the template.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, length: int, variables: Mapping[str, Any], guard: str, now: datetime | None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=pass_context(lambda _, value: self.charged(value)),
        )
        self._guard = guard
        self._now = now
        self._loop_work = 1 + length // _CHARACTERS_PER_UNIT  # covers the template's own text in a loop's body
        self._work_left = 2**62
        self.charged(dict(variables))
        self._work_left = _BASE_WORK + _WORK_PER_UNIT * (2**62 - self._work_left + self._loop_work)
        self.globals.clear()
        self.globals.update(range=range, dict=dict, namespace=Namespace)
        self.globals.update(raise_exception=_raise, strftime_now=self._strftime_now)
        known: dict[str, Any] = {name: self.filters[name] for name in _FILTERS}
        known |= {"join": self._join, "indent": self._indent, "replace": self._replace, "tojson": self._tojson}
        known |= {"concatenated": self._concatenated}
        self.filters.clear()
        self.filters.update({name: self._counting(function) for name, function in known.items()})
        self.filters.update(charged=self.charged, counted=self._counted)
        self.tests.update({name: self._counting(test) for name, test in dict[str, Any](self.tests).items()})

    def spend(self, work: int) -> None:
        """Takes `work` from what is left."""
        self._work_left -= work
        if self._work_left < 0:
            raise SecurityError("it does too much work")

    def spend_text(self, length: int) -> None:
        self.spend(1 + length // _CHARACTERS_PER_UNIT)

    def charged(self, value: Any) -> Any:
        """Returns `value`, charged for all that it holds, as often as it holds it."""
        if isinstance(value, str):
            self.spend_text(len(value))
        elif isinstance(value, range):
            self.spend(1 + len(value))
        else:
            self.spend(1)
            if isinstance(value, Namespace):
                self.charged(value._Namespace__attrs)
            elif isinstance(value, (dict, ItemsView)):
                for pair in value.items() if isinstance(value, dict) else value:
                    self.charged(pair[0])
                    self.charged(pair[1])
            elif isinstance(value, (list, tuple, set, frozenset, KeysView, ValuesView)):
                for item in value:
                    self.charged(item)
        return value

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls anything that a template calls."""
        if isinstance(function, (Macro, LoopContext)):
            self.spend(self._loop_work)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            if function.__name__ == "replace":
                return self._replace(owner, *args)
            if function.__name__ == "join" and len(args) == 1:
                args = (list(args[0]),)
                self.spend_text(len(owner) * len(args[0]))
        if isinstance(owner, (str, list, dict)):
            self.charged(owner)
        self.charged([*args, *kwargs.values()])
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes an operator whose result may be much larger than its operands."""
        for sequence, other in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)):
                self._spend_operator(operator, sequence, other)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise SecurityError(f"{operator!r} makes a number of more than {_MAX_BITS} bits")
        return super().call_binop(context, operator, left, right)

    def _spend_operator(self, operator: str, sequence: Any, other: Any) -> None:
        if operator == "%" and isinstance(sequence, str):
            raise SecurityError("'%' cannot format text here")
        times = max(0, other) if operator == "*" and isinstance(other, int) else 1
        length = len(sequence) * times
        self.spend_text(length) if isinstance(sequence, str) else self.spend(1 + length)

    def wrap_str_format(self, value: Any) -> None:
        """Leaves str.format as it is, for `is_safe_attribute` to refuse."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (int, float, bytes)) or (isinstance(obj, str) and attr in _REFUSED_STRING_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Charging().visit(tree)
        return tree.set_environment(self)  # type: ignore[return-value]

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.charged([*args, *kwargs.values()])
            return function(*args, **kwargs)

        return counting

    def _counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for item in iterable:
            self.spend(self._loop_work)
            yield item

    def _concatenated(self, values: list[Any]) -> str:
        return "".join(map(str, values))

    @pass_eval_context
    def _join(self, context: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
        items = list(value)
        self.spend_text(len(items) * len(str(d)))
        return str(filters.do_join(context, items, d, attribute))

    def _replace(self, s: Any, old: Any, new: Any, count: int = -1) -> str:
        text, old, new = str(self.charged(s)), str(self.charged(old)), str(self.charged(new))
        self.spend_text(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(self, s: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
        text = str(s)
        if not isinstance(width, int) or not 0 <= width <= _MAX_INDENT:
            raise SecurityError(f"an indent of {width!r}; at most {_MAX_INDENT}")
        self.spend_text(len(text) + text.count("\n") * width)
        return filters.do_indent(text, width, first, blank)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= _MAX_INDENT):
            raise SecurityError(f"an indent of {indent!r}; at most {_MAX_INDENT}")
        if separators is not None and any(len(separator) > _MAX_INDENT for separator in separators):
            raise SecurityError(f"separators of more than {_MAX_INDENT} characters")
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return text.replace(json.dumps(self._guard)[1:-1], self._guard)

    def _strftime_now(self, form: str) -> str:
        if re.search(r"%[^A-Za-z%]*\d", form):
            raise SecurityError("a width in a time format")
        return (self._now or datetime.now()).strftime(form)


class _Charging(NodeTransformer):
    """Rewrites a template so that loops, comparisons, look-ups and joins of text are charged."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "concatenated")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "charged")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "charged")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, "charged")
        else:
            node.arg = _filtered(node.arg, "charged")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, "charged")
        return node


class _GenerationTag(Extension):
    """Reads `{% generation %}`, which only marks text for training, as its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str) -> Any:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _raise(message: str) -> None:
    raise TemplateError(message)
