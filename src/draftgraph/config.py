"""Every setting, with its help, its range and its default, written once.

A leaf. The dataclasses are frozen and check themselves; the command line makes its options and help from the same
fields, and `from_options` refuses a name that no field has. To change a setting, make a new object with `replace`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftgraph.errors import ParameterError

AUTO = "auto"
MAX_GRAMMAR = 65_536  # the most characters of a json_schema, regex or grammar
MAX_BUDGET = 512  # the largest budget a request may ask for; runners have room for it


def setting(
    default: Any,
    help_text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with its help and range: `low` and `high` inclusive, `above` exclusive."""
    metadata = {"help": help_text, "low": low, "high": high, "above": above, "choices": choices}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def _hints(config: type) -> Mapping[str, Any]:
    """Returns the types of a config's fields; to evaluate them takes longer than all checks."""
    return typing.get_type_hints(config)


class Checked:
    """A config whose fields are checked against their types and ranges when it is made."""

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            check_value(field.name, getattr(self, field.name), hints[field.name], field.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(Checked):
    """How one request draws its tokens and where it ends."""

    max_tokens: int = setting(256, "Write at most this many tokens.", low=1)
    temperature: float = setting(0.0, "Sampling temperature; 0 takes the likeliest token.", low=0, high=100)
    top_k: int = setting(0, "Keep the k likeliest tokens; 0 keeps all.", low=0)
    top_p: float = setting(1.0, "Keep the likeliest tokens that together have this probability.", above=0, high=1)
    min_p: float = setting(0.0, "Drop tokens below this share of the likeliest one's probability.", low=0, high=1)
    repetition_penalty: float = setting(
        1.0, "Divide positive and multiply negative logits of all tokens seen so far.", low=0.001, high=100
    )
    presence_penalty: float = setting(0.0, "Subtract this from logits of tokens already written.", low=-100, high=100)
    frequency_penalty: float = setting(
        0.0, "Subtract this times the count from logits of tokens already written.", low=-100, high=100
    )
    logit_bias: dict[int, float] = setting({}, "Add these to the logits of these token ids.", low=-1000, high=1000)
    seed: int | None = setting(None, "Seed of the noise; the same seed writes the same text.", low=0, high=2**63 - 1)
    stop: tuple[str, ...] = setting((), "End before this text appears; may be given several times.")
    ignore_eos: bool = setting(False, "Do not end at the model's own end tokens.")
    json_schema: str | None = setting(None, "Write JSON that satisfies this JSON schema.")
    regex: str | None = setting(None, "Write a text that this regular expression matches, from end to end.")
    grammar: str | None = setting(None, "Write a text of this grammar, in llguidance's dialect of Lark.")
    logprobs: int | None = setting(
        None, "Report each token's log-probability, and as many likeliest tokens beside it.", low=0, high=20
    )

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if any(not text for text in self.stop):
            raise ParameterError("an empty stop string", "stop strings of at least one character", "remove it")
        self._check_constraint()

    @property
    def penalises(self) -> bool:
        """Whether tokens that were used before are less likely."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    def ending_at(self, texts: tuple[str, ...]) -> SamplingParams:
        """Returns parameters that also end before these texts, unless the model's own ends are ignored."""
        return self if self.ignore_eos or not texts else dataclasses.replace(self, stop=(*self.stop, *texts))

    @property
    def constraint(self) -> tuple[str, str] | None:
        """The name and the text of what constrains the answer: json_schema, regex or grammar; None if nothing does."""
        asked = (("json_schema", self.json_schema), ("regex", self.regex), ("grammar", self.grammar))
        return next(((name, text) for name, text in asked if text is not None), None)

    def _check_constraint(self) -> None:
        if self.constraint is None:
            return
        name, text = self.constraint
        if [self.json_schema, self.regex, self.grammar].count(None) < 2:
            raise ParameterError("several of json_schema, regex and grammar", "one of them", "remove the others")
        if len(text) > MAX_GRAMMAR:
            raise ParameterError(
                f"a {name} of {len(text)} characters", f"at most {MAX_GRAMMAR} characters", "simplify it"
            )
        if not text.isascii() and text != text.encode(errors="replace").decode():
            raise ParameterError(f"a {name} with half a surrogate pair", "text that UTF-8 can hold", "change it")
        if self.ignore_eos:
            raise ParameterError(f"ignore_eos with a {name}", "one of the two", "remove ignore_eos")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig(Checked):
    """Who proposes, and how widely."""

    draft: str = setting(
        "grammar,ngram,suffix,recycle",
        "Drafters, comma-separated: grammar, ngram, suffix, recycle, model:MODEL; 'off' for none.",
    )
    budget: int | str = setting(
        AUTO, "Check at most this many drafted tokens in one target pass; 0 is plain decoding, 'auto' what pays.",
        low=0, high=MAX_BUDGET, choices=(AUTO,),
    )  # fmt: skip
    width: int = setting(3, "Candidates a draft model proposes after one token.", low=1, high=64)
    depth: int = setting(8, "Longest path a drafter proposes.", low=1, high=64)
    merge: int = setting(2, "Merge hypotheses whose last tokens, this many, are equal; 0 merges none.", low=0, high=16)
    corpus: str | None = setting(None, "A text file whose continuations 'suffix' may also propose.")
    memory: str = setting(
        "request", "What 'suffix' and 'recycle' may learn from: this request alone, or all of this process.",
        choices=("request", "process"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Checked):
    """How the engine shares the machine between requests."""

    context: int | None = setting(None, "Context length in tokens; the default is the model's, at most 4096.", low=2)
    slots: int = setting(8, "Requests that advance together; more wait their turn.", low=1, high=1024)
    kv_tokens: int | None = setting(
        None, "Tokens the key-value cache holds for all requests together; the default lets every slot be full.", low=2
    )
    prefill_chunk: int = setting(64, "Prompt tokens read in one step, of all requests together.", low=1, high=8192)
    runner: str = setting(
        "auto", "What computes the model: the C++ core where it can ('auto'), or one of the two.",
        choices=("auto", "native", "reference"),
    )  # fmt: skip
    threads: int | None = setting(None, "Threads of the native runner; the default is one per core.", low=1, high=256)
    quantize: str = setting(
        "off", "Quantise the matrices of a safetensors folder at load, rounded to nearest.",
        choices=("off", "q8_0", "q4_k"),
    )  # fmt: skip
    packed: str = setting(
        "off", "Whether the native runner keeps its packed weights in the cache folder, for faster starts.",
        choices=("off", "keep"),
    )  # fmt: skip
    chat_template: str | None = setting(
        None, "Put chats through this Jinja file, or a built-in or the model's own template of this name."
    )
    acceptance: str = setting(
        "match", "Acceptance rule: 'match' (the target's own draw) or 'residual' (speculative sampling).",
        choices=("match", "residual"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Checked):
    """Where the server listens, whom it answers, and what one request may ask of it."""

    host: str = setting("127.0.0.1", "Listen at this address.")
    port: int = setting(8000, "Listen at this port; 0 takes a free one.", low=0, high=65535)
    queue: int = setting(16, "Texts that may wait for a slot; more are refused with status 429.", low=0, high=100_000)
    api_key_file: str | None = setting(None, "Answer only who has a key of this file, one a line.")
    allow_public: bool = setting(False, "Listen beyond this machine without keys.")
    trusted_host: tuple[str, ...] = setting(
        (), "Without keys, also answer under this host name; may be given several times."
    )
    cors_origin: tuple[str, ...] = setting(
        (), "Let web pages of this origin use the server; may be given several times; '*' for all, with keys."
    )
    max_choices: int = setting(16, "Most texts one request may ask for.", low=1, high=1024)
    max_body: int = setting(2**20, "Longest request body in bytes.", low=1024, high=2**30)
    body_seconds: float = setting(30.0, "A request body must arrive within this time.", above=0, high=3600)
    send_seconds: float = setting(
        30.0, "End a connection whose client reads nothing of its answer for this many seconds.", above=0, high=3600
    )
    max_connections: int = setting(
        1000, "Most connections at once; at most three quarters of the open files that the system allows.",
        low=1, high=100_000,
    )  # fmt: skip
    max_connections_each: int = setting(250, "Most connections at once from one address.", low=1, high=100_000)
    time_limit: float = setting(600.0, "End a request after this many seconds.", above=0, high=86400)
    grace: float = setting(10.0, "When stopped, let requests finish for this many seconds.", low=0, high=3600)


def from_options(options: Mapping[str, Any], *configs: type[Any]) -> list[Any]:
    """Sorts `options` into one object per config class. Does not modify `options`.

    Raises:
        ParameterError: a name that no class has, or a bad value.
    """
    names = {config: {field.name for field in dataclasses.fields(config)} for config in configs}
    allowed = sorted(set().union(*names.values()))
    for name in options:
        if name not in allowed:
            raise ParameterError(f"unknown option {name!r}", ", ".join(allowed), "check the spelling or remove it")
    return [config(**{k: v for k, v in options.items() if k in names[config]}) for config in configs]


def check_value(name: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> None:
    """Raises ParameterError unless `value` has the type and lies in the range of the field `name`."""
    if typing.get_origin(hint) is types.UnionType:
        if value is None and type(None) in typing.get_args(hint):
            return
        kinds = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        hint = kinds[0] if len(kinds) == 1 else hint
    if hint == int | str:
        _check_number_or_word(name, value, limits)
    elif typing.get_origin(hint) is dict:
        _check_bias(name, value, limits)
    elif typing.get_origin(hint) is tuple:
        if not (isinstance(value, tuple) and all(isinstance(item, str) for item in value)):
            raise ParameterError(f"{name}={value!r}", "a tuple of strings", f"pass {name} as a tuple of strings")
    elif hint in (int, float):
        _check_number(name, value, hint, limits)
    elif not isinstance(value, hint):
        raise ParameterError(f"{name}={value!r}", f"a value of type {hint.__name__}", f"change {name}")
    elif limits["choices"] and value not in limits["choices"]:
        raise ParameterError(f"{name}={value!r}", " or ".join(limits["choices"]), f"choose one of them for {name}")


def _check_bias(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if not isinstance(value, dict):
        raise ParameterError(f"{name}={value!r}", "a map from token id to a number", f"pass {name} as a dict")
    for token, bias in value.items():
        _check_number(f"{name} key", token, int, {"low": 0, "high": None, "above": None})
        _check_number(f"{name}[{token}]", bias, float, limits)


def _check_number_or_word(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if not isinstance(value, str):
        _check_number(name, value, int, limits)
    elif value not in limits["choices"]:
        allowed = " or ".join([*limits["choices"], describe_range(int, limits)])
        raise ParameterError(f"{name}={value!r}", allowed, f"choose one of them for {name}")


def _check_number(name: str, value: Any, kind: type, limits: Mapping[str, Any]) -> None:
    wrong_type = isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int)
    low, high, above = limits["low"], limits["high"], limits["above"]
    if (
        wrong_type
        or (isinstance(value, float) and not math.isfinite(value))
        or (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    ):
        raise ParameterError(
            f"{name}={value!r}", describe_range(kind, limits), f"change {name} to a value in this range"
        )


def describe_range(kind: type, limits: Mapping[str, Any]) -> str:
    """Returns the range of a numeric field in words, such as "a finite number from 0 to 1"."""
    noun = "a whole number" if kind is int else "a finite number"
    low = f" from {limits['low']:g}" if limits["low"] is not None else ""
    above = f" above {limits['above']:g}" if limits["above"] is not None else ""
    high = f" to {limits['high']:g}" if limits["high"] is not None and limits["high"] < 2**53 else ""
    return noun + low + above + high
