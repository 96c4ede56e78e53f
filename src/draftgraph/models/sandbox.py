"""The sandbox of chat templates: what they may use, and what it costs.

In: values of one rendering. Out: the same as Jinja makes of them, or a `SecurityError`. A template is somebody's
program: every loop, call, filter, look-up and operator is charged by the size of what it touches, so none runs long or
fills the memory. What cannot be charged beforehand, such as padding to any width, is left out. Names of methods are
allowed one by one. It must never know messages, models or files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, Undefined, filters, nodes, pass_context, pass_environment, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import LoopControlExtension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from draftgraph.models.template_syntax import MAX_LITERAL_BITS, Charging, GenerationTag

_BASE_WORK = 200_000  # about a second
_WORK_PER_UNIT = 200  # for each unit of the variables
_CHARACTERS_PER_UNIT = 64  # text is copied much faster than loops run
_CHARACTERS_PER_PIECE = 8  # of text that is cut up
_MAX_BITS = 4096  # of a whole number
_MAX_INDENT = 64
_MAX_TIME_FORMAT = 256
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "items", "last", "length", "lower",
    "reverse", "safe", "string", "upper",
)  # fmt: skip
# Filters that go through a text character by character.
_ITERATING_FILTERS = (
    "dictsort", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "title",
)  # fmt: skip
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset({
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join",
        "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
        "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    }),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}  # fmt: skip
_CUTTING_METHODS = ("rsplit", "split", "splitlines", "title")
# These compare every character with every character of their argument.
_SQUARE_METHODS = ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
_OPEN_TYPES = (LoopContext, Macro, Namespace, TemplateReference)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering. Owns the count of the work that is left.

    Args:
        length: of the template.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, length: int, variables: Mapping[str, Any], guard: str, now: datetime | None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[LoopControlExtension, GenerationTag],
            finalize=pass_context(lambda _, value: self.charged(value)),
        )
        self._guard = guard
        self._now = now
        self._loop_work = 1 + length // _CHARACTERS_PER_UNIT  # covers the template's own text in a loop's body
        self._work_left = 2**62
        self.charged(dict(variables))
        self._work_left = _BASE_WORK + _WORK_PER_UNIT * (2**62 - self._work_left + self._loop_work)
        self.globals.clear()
        self.globals.update(range=range, dict=self._dict, namespace=self._namespace)
        self.globals.update(raise_exception=_raise, strftime_now=self._strftime_now)
        known: dict[str, Any] = {name: self.filters[name] for name in _FILTERS}
        known |= {"int": self._int, "indent": self._indent, "replace": self._replace, "tojson": self._tojson}
        known |= {"trim": self._trim, "concatenated": self._concatenated, "key": self._key}
        iterating: dict[str, Any] = {name: self.filters[name] for name in _ITERATING_FILTERS}
        iterating |= {"join": self._join, "unique": self._unique}
        self.filters.clear()
        self.filters.update({name: self._counting(function, self.charged) for name, function in known.items()})
        self.filters.update({name: self._counting(function, self._taken) for name, function in iterating.items()})
        self.filters.update(charged=self.charged, counted=self._counted)
        tests = dict[str, Any](self.tests)
        self.tests.update({name: self._counting(test, self.charged) for name, test in tests.items()})

    def spend(self, work: int) -> None:
        """Takes `work` from what is left."""
        self._work_left -= work
        if self._work_left < 0:
            raise SecurityError("it does too much work")

    def spend_text(self, length: int) -> None:
        self.spend(1 + length // _CHARACTERS_PER_UNIT)

    def charged(self, value: Any) -> Any:
        """Returns `value`, charged for all that it holds, as often as it holds it; an iterator as it goes along."""
        if isinstance(value, str):
            self.spend_text(len(value))
        elif isinstance(value, range):
            self.spend(1 + len(value))
        elif isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return map(self.charged, value)
        else:
            self.spend(1)
            if isinstance(value, int):
                self._check_bits(value)
            elif isinstance(value, Namespace):
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
        if isinstance(function, (BlockReference, LoopContext, Macro)):
            self.spend(self._loop_work)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str) and function.__name__ == "replace":
            return self._replace(owner, *args)
        args = tuple(map(self.charged, args))
        kwargs = {name: self.charged(value) for name, value in kwargs.items()}
        if isinstance(owner, str):
            if function.__name__ == "join":
                args = tuple(map(list, map(self._taken, args)))
                self.spend_text(len(owner) * sum(map(len, args)))
            self._spend_method(function.__name__, owner, [*args, *kwargs.values()])
        if isinstance(owner, (str, list, tuple, dict)):
            self.charged(owner)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes an operator whose operands or result may be large."""
        self.spend(1)
        for sequence, other in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)):
                self._spend_operator(operator, sequence, other)
            if isinstance(sequence, Set):
                raise SecurityError(f"{operator!r} of a {type(sequence).__name__}")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise SecurityError(f"{operator!r} of numbers of more than {_MAX_BITS} bits, or that make one")
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Looks up what a template, or the path of a filter's attribute, names."""
        self.spend(1)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Looks up what a template names."""
        self.spend(1)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> None:
        """Leaves str.format as it is, for `is_safe_attribute` to refuse."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, _OPEN_TYPES) and super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Charging().visit(tree)
        return tree.set_environment(self)  # type: ignore[return-value]

    def _spend_operator(self, operator: str, sequence: Any, other: Any) -> None:
        if operator == "%" and isinstance(sequence, str):
            raise SecurityError("'%' cannot format text here")
        times = max(0, other) if operator == "*" and isinstance(other, int) else 1
        length = len(sequence) * times
        self.spend_text(length) if isinstance(sequence, str) else self.spend(1 + length)

    def _spend_method(self, name: str, owner: str, args: list[Any]) -> None:
        if name in _CUTTING_METHODS:
            self.spend(len(owner) // _CHARACTERS_PER_PIECE)
        if name in _SQUARE_METHODS:
            self.spend_text(len(owner) * sum(len(arg) for arg in args if isinstance(arg, str)))

    def _check_bits(self, number: int) -> None:
        if number.bit_length() > _MAX_BITS:
            raise SecurityError(f"a whole number of more than {_MAX_BITS} bits")

    def _counting(self, function: Callable[..., Any], charge: Callable[[Any], Any]) -> Callable[..., Any]:
        @wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.spend(1)
            return function(*map(charge, args), **{name: charge(value) for name, value in kwargs.items()})

        return counting

    def _taken(self, value: Any) -> Any:
        """Returns `value`, charged as what is gone through item by item."""
        if isinstance(value, str):
            self.spend(len(value))
        return self.charged(value)

    def _counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for item in iterable:
            self.spend(self._loop_work)
            yield item

    def _concatenated(self, values: list[Any]) -> str:
        return "".join(map(str, values))

    def _key(self, value: Any) -> Any:
        """Returns a key that may stand in a table: one whose hash cannot be chosen to be that of many others."""
        if isinstance(value, int) and value.bit_length() <= MAX_LITERAL_BITS:
            return value
        if value is None or isinstance(value, (str, float, Undefined)):
            return value
        raise SecurityError(f"a key that is a {type(value).__name__}, or of more than {MAX_LITERAL_BITS} bits")

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        pairs = args[0].items() if args and isinstance(args[0], dict) else args[0] if args else ()
        return {self._key(key): value for key, value in pairs} | kwargs

    def _namespace(self, *args: Any, **kwargs: Any) -> Namespace:
        return Namespace(self._dict(*args, **kwargs))

    @pass_environment
    def _unique(
        self, environment: Any, value: Any, case_sensitive: bool = False, attribute: str | int | None = None
    ) -> Iterator[Any]:
        postprocess = None if case_sensitive else filters.ignore_case
        getter = filters.make_attrgetter(environment, attribute, postprocess=postprocess)
        seen = set()
        for item in value:
            key = self._key(getter(item))
            if key not in seen:
                seen.add(key)
                yield item

    def _int(self, value: Any, default: Any = 0, base: int = 10) -> Any:
        if isinstance(value, str) and len(value) > _MAX_BITS:
            raise SecurityError(f"a whole number of more than {_MAX_BITS} digits")
        return self.charged(filters.do_int(value, default, base))

    def _trim(self, value: Any, chars: str | None = None) -> str:
        self.spend_text(len(str(value)) * len(chars or ""))
        return filters.do_trim(value, chars)

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
        self.spend(len(text) // _CHARACTERS_PER_PIECE)
        self.spend_text(len(text.splitlines()) * width)
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
        left = self._work_left
        self.charged(value)
        self.spend_text((left - self._work_left) * _depth(value) * (indent or 0))
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return text.replace(json.dumps(self._guard)[1:-1], self._guard)

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_TIME_FORMAT or re.search(r"%[^A-Za-z%]*\d", form):
            raise SecurityError(f"a width in a time format, or more than {_MAX_TIME_FORMAT} characters")
        return (self._now or datetime.now()).strftime(form)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 0


def _raise(message: str) -> None:
    raise TemplateError(message)
