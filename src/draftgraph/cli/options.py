"""Command-line options made from the config fields, so that a default and a help text exist once.

In: a command function that takes `options: Options`. Out: the same command with one `--option` per field. Typer does
the parsing; ranges are checked by the configs themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from draftgraph.config import DraftConfig, EngineConfig, SamplingParams, ServerConfig, describe_range
from draftgraph.data import read_text
from draftgraph.errors import ParameterError

_PANELS: Mapping[type, str] = {
    SamplingParams: "Sampling", DraftConfig: "Drafting", EngineConfig: "Engine", ServerConfig: "Server",
}  # fmt: skip
_METAVARS: Mapping[str, str] = {
    "stop": "TEXT", "logit_bias": "ID=NUMBER", "draft": "NAMES", "corpus": "FILE", "budget": "N", "json_schema": "FILE",
    "grammar": "FILE", "chat_template": "FILE", "api_key_file": "FILE", "trusted_host": "NAME", "cors_origin": "ORIGIN",
}  # fmt: skip
_TEXTS = ("json_schema", "grammar")  # long texts, which are given as a file


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the user set, by field name: the sampling parameters, what `draftgraph.load` takes, and the server's."""

    sampling: dict[str, Any]
    load: dict[str, Any]
    server: dict[str, Any] = dataclasses.field(default_factory=dict)


def with_options(*configs: type, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of these configs, but for the fields `without`, for its parameter `options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        fields = {
            field.name: (config, field)
            for config in configs
            for field in dataclasses.fields(config)
            if field.name not in without
        }

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in fields}
            command(**arguments, options=_sort(given, fields))

        hints = typing.get_type_hints(command, include_extras=True)
        signature = inspect.signature(command)
        kept = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name != "options"
        ]
        added = [one for config in configs for one in _parameters(config) if one.name in fields]
        wrapper.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *added]}
        return wrapper

    return decorate


def _sort(given: Mapping[str, Any], fields: Mapping[str, Any]) -> Options:
    options = Options({}, {})
    owners = {SamplingParams: options.sampling, ServerConfig: options.server}
    for name, value in given.items():
        config, field = fields[name]
        if value is None:  # not given
            continue
        if name == "logit_bias":
            value = dict(map(_parse_bias, value))
        elif name == "budget" and value.isdecimal():
            value = int(value)
        elif name in _TEXTS:
            value = read_text(Path(value))
        elif isinstance(value, list):
            value = tuple(value)
        owners.get(config, options.load)[field.name] = value
    return options


def _parse_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError as error:
        raise ParameterError(f"--logit-bias {text}", "TOKEN_ID=NUMBER, such as 42=-5", "change the option") from error


def _parameters(config: type) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        kind: Any = hints[field.name]
        if typing.get_origin(kind) is types.UnionType:
            kinds = [arg for arg in typing.get_args(kind) if arg is not type(None)]
            kind = kinds[0] if len(kinds) == 1 else str
        if typing.get_origin(kind) in (tuple, dict):
            kind = list[str]
        option = typer.Option(
            "--" + field.name.replace("_", "-"),
            help=_help(field, kind),
            metavar=_METAVARS.get(field.name),
            rich_help_panel=_PANELS[config],
            show_default=False,
        )
        annotation = Annotated[kind | None, option]
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(field: dataclasses.Field[Any], kind: Any) -> str:
    limits = field.metadata
    notes = [describe_range(kind, limits)] if kind in (int, float) else []
    notes += [describe_range(int, limits)] if kind is str and limits["high"] is not None else []
    notes += [" or ".join(limits["choices"])] if limits["choices"] else []
    if field.default not in (None, (), False, dataclasses.MISSING):
        notes.append(f"default {field.default}")
    return f"{limits['help']} ({'; '.join(notes)})" if notes else str(limits["help"])
