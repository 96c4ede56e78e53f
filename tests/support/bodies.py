"""Bodies as large as a server takes, of every kind that could cost more than its bytes.

In: nothing. Out: a path and a body for each kind, all of which get an answer below 500.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from support.serving import CHAT, TEXT

LARGEST = 2**20  # the default of `max_body`
_ASKED = '"messages":[{"role":"user","content":"Hi"}]'


def filled(before: str, item: str, after: str, *, most: int = 2**20, last: str = "", size: int = LARGEST) -> bytes:
    """Returns a body with as many of `item` as fit, at most `most`, comma-separated; `last` stands behind them.

    "%d" in an item is its number.
    """
    room = size - len(before.encode()) - len(after.encode()) - len(last.encode()) - 1
    parts: list[str] = []
    for number in range(most):
        part = item.replace("%d", str(number))
        room -= len(part.encode()) + 1
        if room < 0:
            break
        parts.append(part)
    return (before + ",".join([*parts, last] if last else parts) + after).encode()


def large_bodies() -> dict[str, tuple[str, bytes]]:
    """Returns every kind by name."""
    return dict([*_values(), *_prompts(), *_chats(), *_functions(), *_tokens()])


def _values() -> Iterator[tuple[str, tuple[str, bytes]]]:
    """JSON of every form, as the value of a field or as the whole."""
    items = {
        "numbers": "1", "negative numbers": "-1", "fractions": "1.5", "exponents": "1e9", "long numbers": "9" * 20,
        "empty arrays": "[]", "empty objects": "{}", "nested arrays": "[" * 60 + "]" * 60, "small objects": '{"a":1}',
        "nested objects": '{"a":' * 60 + "1" + "}" * 60, "words": '"a"', "empty words": '""', "nulls": "null",
        "booleans": "true", "escapes": '"\\u00e4\\n\\\\"', "twins": '{"a":1,"a":1}', "halves": '"\\ud800"',
    }  # fmt: skip
    places = {
        "prompt": TEXT, "stop": TEXT, "unknown": TEXT, "messages": CHAT, "tools": CHAT, "response_format": CHAT,
        "tokens": "/detokenize",
    }  # fmt: skip
    for number, (name, item) in enumerate(items.items()):
        for place, (field, path) in enumerate(places.items()):
            if field in ("prompt", "unknown") or (number + place) % 5 == 0:
                yield f"{name} as {field}", (path, filled(f'{{"{field}":[', item, "]}"))
    yield "brackets", (TEXT, b"[" * LARGEST)
    yield "backslashes", (TEXT, b'{"prompt":"' + b"\\" * (LARGEST - 12))
    yield "digits", (TEXT, b'{"n":' + b"9" * (LARGEST - 8) + b"}")
    yield "blanks", (TEXT, b'{"prompt":"a","max_tokens":1' + b" " * (LARGEST - 40) + b"}")
    yield "broken characters", (TEXT, b'{"prompt":"' + b"\xe4" * (LARGEST - 16) + b'"}')


def _prompts() -> Iterator[tuple[str, tuple[str, bytes]]]:
    text = '{"max_tokens":1,"prompt":'
    yield "texts", (TEXT, filled(f"{text}[", f'"{"a" * 1000}"', "]}", most=1024))
    yield "texts and a number", (TEXT, filled(f"{text}[", f'"{"a" * 1000}"', "]}", most=1000, last="1"))
    yield "ids", (TEXT, filled(f"{text}[", "1", "]}"))
    yield "ids and a word", (TEXT, filled(f"{text}[", "1", "]}", last='"a"'))
    yield "a word and ids", (TEXT, filled(f'{text}["a",', "1", "]}"))
    yield "lists of ids", (TEXT, filled(f"{text}[", f"[{'1,' * 500}1]", "]}", most=1024))
    yield "lists of ids and a word", (TEXT, filled(f"{text}[", f"[{'1,' * 500}1]", "]}", most=1000, last='["a"]'))
    yield "single ids in lists", (TEXT, filled(f"{text}[", "[1]", "]}"))


def _chats() -> Iterator[tuple[str, tuple[str, bytes]]]:
    turn, part = '{"role":"user","content":"a"}', '{"type":"text","text":""}'
    parts = f'{{"role":"user","content":[{",".join([part] * 1024)}]}}'
    call = '{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'
    calls = f'{{"role":"assistant","tool_calls":[{",".join([call] * 128)}]}}'
    for path in (CHAT, "/tokenize"):
        yield f"messages to {path}", (path, filled('{"messages":[', turn, "]}", most=4096))
        yield f"more messages to {path}", (path, filled('{"messages":[', turn, "]}"))
        yield f"long messages to {path}", (
            path, filled('{"messages":[', f'{{"role":"user","content":"{"a" * 200}"}}', "]}", most=4096)
        )  # fmt: skip
        yield f"parts to {path}", (path, filled('{"messages":[', parts, "]}"))
        yield f"calls to {path}", (path, filled('{"messages":[', calls, "]}"))
    wrong = {
        "keys": '{"%d":1}', "roles": '{"role":"%d"}', "contents": '{"role":"user","content":%d}',
        "parts": f'{{"role":"user","content":[{",".join(["{}"] * 1024)}]}}',
        "calls": f'{{"role":"assistant","content":"a","tool_calls":[{",".join(["{}"] * 128)}]}}',
    }  # fmt: skip
    for name, message in wrong.items():
        yield f"messages with wrong {name}", (CHAT, filled('{"messages":[', message, "]}"))
        yield f"at last a message with wrong {name}", (CHAT, filled('{"messages":[', turn, f",{message}]}}", most=4000))
    yield "unknown keys", (CHAT, filled("{", '"%d":1', "}"))
    yield "unknown keys of a message", (CHAT, filled('{"messages":[{', '"%d":1', "}]}"))
    yield "one key twice among many", (CHAT, filled('{"a":0,', '"%d":1', "}", last='"a":1'))
    yield "one key many times", (CHAT, filled("{", '"a":1', "}"))


def _functions() -> Iterator[tuple[str, tuple[str, bytes]]]:
    tool = json.dumps({"type": "function", "function": {"name": "f%d", "description": "a" * 7000}})
    yield "tools", (CHAT, filled(f'{{{_ASKED},"tools":[', tool, "]}", most=128))
    yield "tools of one name", (CHAT, filled(f'{{{_ASKED},"tools":[', tool.replace("%d", ""), "]}", most=128))
    schemas: dict[str, tuple[str, str, str]] = {
        "words": ('{"enum":[', '"w%d"', "]}"), "properties": ('{"properties":{', '"p%d":{}', "}}"),
        "alternatives": ('{"anyOf":[', '{"type":"null"}', "]}"), "empty arrays": ('{"enum":[', "[]", "]}"),
        "unknown keywords": ("{", '"k%d":1', "}"),
    }  # fmt: skip
    for name, (before, item, after) in schemas.items():
        answer = f'{{{_ASKED},"response_format":{{"type":"json_schema","json_schema":{{"name":"a","schema":'
        yield f"a schema of {name}", (CHAT, filled(answer + before, item, after + "}}}"))
        function = (
            f'{{{_ASKED},"tool_choice":"required","tools":[{{"type":"function","function":{{"name":"f","parameters":'
        )
        yield f"a function of {name}", (CHAT, filled(function + before, item, after + "}}]}"))


def _tokens() -> Iterator[tuple[str, tuple[str, bytes]]]:
    yield "biases", (CHAT, filled(f'{{{_ASKED},"max_tokens":1,"n":4,"logit_bias":{{', '"%d":1', "}}", most=300))
    yield "too many biases", (CHAT, filled(f'{{{_ASKED},"logit_bias":{{', '"%d":1', "}}"))
    yield "biases of no token", (CHAT, filled(f'{{{_ASKED},"logit_bias":{{', '"a%d":"1"', "}}"))
    yield "stops", (CHAT, filled(f'{{{_ASKED},"max_tokens":1,"stop":[', f'"{"a" * 1000}"', "]}", most=16))
    yield "too many stops", (CHAT, filled(f'{{{_ASKED},"stop":[', '"a%d"', "]}"))
    yield "a model of a long name", (CHAT, f'{{{_ASKED},"model":"{"a" * (LARGEST - 100)}"}}'.encode())
    yield "ids to turn into text", ("/detokenize", filled('{"tokens":[', "7", "]}"))
    yield "at last an id that there is not", ("/detokenize", filled('{"tokens":[', "7", "]}", last="-1"))


def long_texts() -> dict[str, tuple[str, bytes]]:
    """Returns bodies of one text each, which takes time to turn into ids."""
    texts = {
        "of words": b"word " * (LARGEST // 5 - 20), "of one letter": b"a" * (LARGEST - 60),
        "of escaped characters": b"\\u4e16" * (LARGEST // 6 - 20), "of quotes": b'\\"' * (LARGEST // 2 - 20),
    }  # fmt: skip
    return {
        f"a text {name} to {path}": (path, b'{"prompt":"' + text + b'"}')
        for name, text in texts.items()
        for path in (TEXT, "/tokenize")
    }
