"""Sound model files, and the ways to break them.

In: a random generator and the files of a sound model. Out: broken files in their place, and words for what was done. It
must never know what is refused and what is not.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.gguf_bytes import ARRAY, SIZES, STRING, GgufBytes, Value, take_apart

_WHOLE = (
    0,
    1,
    2,
    3,
    7,
    31,
    33,
    255,
    2**16,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_REAL = (0.0, -0.0, -1.0, 1e-45, 1e-30, 1e30, math.inf, -math.inf, math.nan)
_TEXT = (
    "",
    "x",
    "\0",
    "é",
    "llama",
    "gpt2",
    "default",
    "linear",
    "{{ 1 // 0 }}",
    "{% for x in y %}",
    "a b",
    "x" * 70_000,
)
# Each stands for something nested as deep as its number.
_DEEP = {f"deep mark {depth}": "[" * depth + "]" * depth for depth in (200, 450, 900, 100_000)} | {
    f"deep steps {depth}": '{"type": "Sequence", "normalizers": [' * depth + "]}" * depth for depth in (40, 200, 450)
}
# Steps of a tokenizer.json on which the `tokenizers` library panics, or whose text grows without end.
_STEPS: tuple[Any, ...] = (
    {"type": "FixedLength", "length": 0}, {"type": "Precompiled", "precompiled_charsmap": "BAAAAP///396enp6"},
    {"type": "Split", "pattern": {"Regex": "(?:a|aa)+(?:a|aa)+b"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed", "invert": True},
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60},
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": ""}, "content": "a"}] * 60},
    {"type": "Prepend", "prepend": "x" * 300_000}, {"type": "Nmt"}, {"type": "Lowercase"}, {"type": "StripAccents"},
    {"type": "Metaspace", "replacement": "x", "prepend_scheme": "first", "split": True},
    {"type": "Sequence", "pretokenizers": [{"type": "Punctuation", "behavior": "Removed"}] * 9},
    {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": []}]},
)  # fmt: skip
_HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, *_WHOLE, 10**30, 10**400, 0.5, *_REAL, 1e308, *_TEXT, "\ud800", [], {}, [[]], [None],
    [1, "x"], {"": None}, {"type": "x"}, {"content": 7}, [{"name": "default"}], *_DEEP, ["x"] * 3000, list(range(3000)),
)  # fmt: skip


def mutate_gguf(rng: random.Random, files: list[Path]) -> str:
    """Breaks one or two things in a GGUF file, or in one part of a split one."""
    file = rng.choice(files)
    if len(files) > 1 and rng.random() < 0.2:
        return _mutate_shards(rng, files)
    done = []
    for _ in range(rng.choice((1, 1, 2))):
        data = file.read_bytes()
        try:
            parsed, fields = take_apart(data)
        except (struct.error, KeyError, MemoryError, OverflowError):  # broken by the step before
            file.write_bytes(data[: rng.randrange(len(data) + 1)])
            return f"{file.name}: {', '.join(done)}, cut"
        is_whole = parsed.pairs and parsed.tensors and parsed.data
        if rng.random() < 0.4 or not is_whole:
            what, data = _mutate_bytes(rng, data, [field for field in fields if field[1]])
        else:
            what, data = rng.choice(_STRUCTURES)(rng, parsed), parsed.to_bytes()
        file.write_bytes(data)
        done.append(what)
    return f"{file.name}: {', '.join(done)}"


def _mutate_bytes(rng: random.Random, data: bytes, fields: list[tuple[int, int]]) -> tuple[str, bytes]:
    """Changes bytes without regard to what they mean, but for where a field of a number or a text is."""
    changed, way = bytearray(data), rng.randrange(6)
    if not data:
        return "nothing left to change", data
    start, length = rng.choice(fields) if fields else (0, len(data))
    at = rng.randrange(len(data)) if rng.random() < 0.3 else min(start + rng.randrange(length), len(data) - 1)
    if way == 0:
        changed[at] ^= 1 << rng.randrange(8)
        return f"bit of byte {at} flipped", bytes(changed)
    if way == 1:
        for _ in range(rng.randrange(1, 40)):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        return "bytes anywhere replaced", bytes(changed)
    if way == 2:
        cut = max(0, min(len(data), start + rng.choice((0, length, 1, -1))))
        return f"cut to {cut} bytes", data[:cut]
    if way == 3:
        number = rng.choice(_WHOLE) % 2 ** (8 * min(length, 8))
        changed[start : start + min(length, 8)] = number.to_bytes(min(length, 8), "little")
        return f"bytes at {start} set to {number}", bytes(changed)
    if way == 4:
        run = rng.randrange(1, 300)
        changed[at : at + run] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * len(changed[at : at + run])
        return f"{run} bytes at {at} overwritten", bytes(changed)
    run = rng.randrange(1, 64)
    if rng.random() < 0.5:
        return f"{run} bytes at {at} left out", data[:at] + data[at + run :]
    return f"{run} bytes at {at} put in", data[:at] + rng.randbytes(run) + data[at:]


def _values(rng: random.Random) -> Value:
    kind = rng.choice((*SIZES, STRING, ARRAY, ARRAY))
    if kind == STRING:
        return Value(kind, rng.choice((*(text.encode() for text in _TEXT), b"\xff", b"\xed\xa0\x80")))
    if kind == ARRAY:
        item_kind = rng.choice((*SIZES, STRING, ARRAY, 13, 2**31))
        size = SIZES.get(item_kind, 0)
        items = [rng.randbytes(size) for _ in range(rng.choice((0, 1, 3, 300)))]
        return Value(kind, item_kind=item_kind, items=items, count=rng.choice((None, None, 0, 2**24, 2**63, 2**64 - 1)))
    if kind in (6, 12):
        return Value(kind, struct.pack("<f" if kind == 6 else "<d", rng.choice(_REAL)))
    return Value(kind, (rng.choice((*_WHOLE, -1)) % 2 ** (8 * SIZES[kind])).to_bytes(SIZES[kind], "little"))


def _change_value(rng: random.Random, parsed: GgufBytes) -> str:
    """Puts another number or text of the same type in a value's place; of an array, in an item's."""
    key, value = rng.choice(parsed.pairs)
    if value.kind == ARRAY and value.items:
        at, size = rng.randrange(len(value.items)), SIZES.get(value.item_kind, 0)
        other = rng.choice(value.items) if rng.random() < 0.3 else None
        whole = (rng.choice(_WHOLE) % 2 ** (8 * size)).to_bytes(size, "little")
        value.items[at] = other or (rng.choice(_TEXT).encode() if value.item_kind == STRING else whole)
        return f"item {at} of {key!r} is {value.items[at]!r:.40}"
    if value.kind == STRING:
        value.data = rng.choice((rng.choice(_TEXT).encode(), b"\xff", value.data[: len(value.data) // 2]))
    elif value.kind in (6, 12):
        value.data = struct.pack("<f" if value.kind == 6 else "<d", rng.choice(_REAL))
    else:
        size = SIZES.get(value.kind, 1)
        value.data = (rng.choice(_WHOLE) % 2 ** (8 * size)).to_bytes(size, "little")
    return f"{key!r} is {value.data!r:.40}"


def _replace_value(rng: random.Random, parsed: GgufBytes) -> str:
    at = rng.randrange(len(parsed.pairs))
    key, value = parsed.pairs[at][0], _values(rng)
    parsed.pairs[at] = (key, value)
    return f"{key!r} is {str(value)[:80]}"


def _swap_values(rng: random.Random, parsed: GgufBytes) -> str:
    arrays = [at for at, pair in enumerate(parsed.pairs) if pair[1].kind == ARRAY]
    among = arrays if arrays and rng.random() < 0.5 else range(len(parsed.pairs))
    a, b = rng.choice(among), rng.choice(among)
    (key, value), (other, second) = parsed.pairs[a], parsed.pairs[b]
    parsed.pairs[a], parsed.pairs[b] = (key, second), (other, value)
    return f"values of {key!r} and {other!r} swapped"


def _change_pairs(rng: random.Random, parsed: GgufBytes) -> str:
    at, way = rng.randrange(len(parsed.pairs)), rng.randrange(4)
    key, value = parsed.pairs[at]
    if way == 0:
        del parsed.pairs[at]
        return f"{key!r} dropped"
    if way == 1:
        parsed.pairs.insert(rng.randrange(len(parsed.pairs)), (key, value))
        return f"{key!r} twice"
    new = rng.choice((b"", b"\xff", b"x", b"llama.expert_count", b"split.count", b"general.alignment", key + b"s"))
    if way == 2:
        parsed.pairs[at] = (new, value)
        return f"{key!r} renamed {new!r}"
    value = _values(rng)
    parsed.pairs.append((new, value))
    return f"{new!r} added, {str(value)[:80]}"


def _resize_array(rng: random.Random, parsed: GgufBytes) -> str:
    arrays = [pair for pair in parsed.pairs if pair[1].kind == ARRAY] or parsed.pairs
    key, value = rng.choice(arrays)
    way = rng.randrange(5)
    if way == 0:
        value.count = rng.choice((*_WHOLE, len(value.items) + 1, max(0, len(value.items) - 1)))
        return f"{key!r} has a count of {value.count}"
    if way == 1:
        value.items = value.items[: rng.randrange(len(value.items) + 1)]
    elif way == 2:
        value.items = value.items + value.items[-rng.randrange(1, 9) :]
    elif way == 3:
        rng.shuffle(value.items)
    else:
        value.item_kind = rng.choice((*SIZES, STRING))
        size = SIZES.get(value.item_kind, 3)
        value.items = [bytes(rng.choice((b"\1", b"x")) * size) for _ in value.items]
    return f"{key!r} has {len(value.items)} items, in way {way}"


def _change_counts(rng: random.Random, parsed: GgufBytes) -> str:
    count = rng.choice((*_WHOLE, len(parsed.pairs) - 1, len(parsed.tensors) - 1, len(parsed.tensors) + 1))
    if rng.random() < 0.5:
        parsed.num_pairs = count
    else:
        parsed.num_tensors = count
    return f"a count of {count}"


def _change_tensor(rng: random.Random, parsed: GgufBytes) -> str:
    tensor, way = rng.choice(parsed.tensors), rng.randrange(7)
    at = rng.randrange(len(tensor.dims)) if tensor.dims else 0
    if way == 0 and tensor.dims:
        tensor.dims[at] = rng.choice((*_WHOLE, tensor.dims[at] + 1, tensor.dims[at] - 1, tensor.dims[at] * 2))
    elif way == 1:
        tensor.dims = rng.choice(([], tensor.dims[::-1], [*tensor.dims, 1], [1, *tensor.dims], tensor.dims * 3))
    elif way == 2:
        tensor.kind = rng.choice((*range(42), 2**31, 2**32 - 1))
    elif way == 3:
        tensor.offset = rng.choice((*_WHOLE, tensor.offset + 1, tensor.offset + 32, tensor.offset - 32))
    elif way == 4:
        tensor.name = rng.choice((b"", b"\xff", b"x" * 70_000, rng.choice(parsed.tensors).name, tensor.name + b"x"))
    elif way == 5:
        other = rng.choice(parsed.tensors)
        tensor.offset, other.offset, tensor.kind, other.kind = other.offset, tensor.offset, other.kind, tensor.kind
    else:
        parsed.tensors.remove(tensor)
    return f"tensor {tensor.name!r:.60} in way {way}: {tensor.dims} of {tensor.kind} at {tensor.offset}"


def _change_data(rng: random.Random, parsed: GgufBytes) -> str:
    """Changes what weights are: numbers that are none, and scales without bounds."""
    data = bytearray(parsed.data)
    for _ in range(rng.choice((1, 1, 30, 3000))):
        at = rng.randrange(len(data)) // 4 * 4
        data[at : at + 4] = rng.choice(
            (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\xff\x7b\xff\x7b", rng.randbytes(4))
        )
    parsed.data = bytes(data)
    return "weights changed"


_STRUCTURES: tuple[Callable[[random.Random, GgufBytes], str], ...] = (
    _change_value, _change_value, _replace_value, _swap_values, _change_pairs, _resize_array, _change_counts,
    _change_tensor, _change_tensor, _change_data,
)  # fmt: skip


def mutate_folder(rng: random.Random, folder: Path) -> str:
    """Breaks one or two things in the files of a model folder."""
    done = []
    for _ in range(rng.choice((1, 1, 2))):
        files = sorted(path for path in folder.iterdir() if path.is_file())
        weights = [path for path in files if path.suffix == ".safetensors"]
        texts = [path for path in files if path.suffix == ".json"]
        texts += [path for path in texts if path.name in ("tokenizer.json", "config.json")]
        way = rng.random()
        if way < 0.1:
            done.append(_mutate_shards(rng, files))
        elif way < 0.45 and weights:
            done.append(_mutate_safetensors(rng, rng.choice(weights)))
        elif texts:
            done.append(_mutate_json(rng, rng.choice(texts)))
    return ", ".join(done)


def _mutate_shards(rng: random.Random, files: list[Path]) -> str:
    """Removes a file, or puts another or a folder in its place."""
    file, other, way = rng.choice(files), rng.choice(files), rng.randrange(4)
    if way == 0:
        file.unlink()
        return f"{file.name} removed"
    if way == 1:
        file.unlink()
        file.mkdir()
        return f"{file.name} is a folder"
    if way == 2:
        copy = file.with_name(f"{rng.choice(('model', 'chat_template', 'x'))}{other.suffix}")
        if not copy.exists():
            copy.write_bytes(other.read_bytes())
        return f"{copy.name} is there, perhaps copied from {other.name}"
    data = other.read_bytes()
    file.write_bytes(data)
    return f"{file.name} is {other.name}"


def _mutate_safetensors(rng: random.Random, file: Path) -> str:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    way = rng.random()
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        way = 0.0
    if way < 0.4:
        what, data = _mutate_bytes(rng, data, [(0, 8), (8, 1), (8, length or 1), (8 + length, 1), (len(data) - 1, 1)])
    elif way < 0.6:
        body = bytearray(data[8 + length :]) or bytearray(4)
        for _ in range(rng.choice((1, 30, 3000))):
            at = rng.randrange(len(body)) // 4 * 4
            body[at : at + 4] = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", rng.randbytes(4)))
        what, data = "weights changed", data[: 8 + length] + bytes(body)
    else:
        header, what = _mutated(rng, header)
        text = _json_text(header)
        data = len(text).to_bytes(8, "little") + text + data[8 + length :]
    file.write_bytes(data)
    return f"{file.name}: {what}"


def _mutate_json(rng: random.Random, file: Path) -> str:
    data = file.read_bytes()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if value is None or rng.random() < 0.15:
        what, data = _mutate_bytes(rng, data, [])
    elif file.name == "tokenizer.json" and isinstance(value, dict) and rng.random() < 0.3:
        key, step = rng.choice(("normalizer", "pre_tokenizer")), rng.choice((*_STEPS, *_DEEP))
        what, data = f"{key} is {step!s:.60}", _json_text(value | {key: step})
    elif file.name == "tokenizer.json" and rng.random() < 0.6 and _words(value):
        _, what = _mutated(rng, rng.choice(_words(value)))
        data = _json_text(value)
    else:
        value, what = _mutated(rng, value)
        data = _json_text(value)
    file.write_bytes(data)
    return f"{file.name}: {what}"


def _words(spec: Any) -> list[Any]:
    """Returns the tables of a tokenizer.json that are not empty, wherever they still are what they should be."""
    model = spec.get("model") if isinstance(spec, dict) else None
    added = spec.get("added_tokens") if isinstance(spec, dict) else None
    tables = [model.get("vocab"), model.get("merges"), model] if isinstance(model, dict) else []
    tables += [added, *added] if isinstance(added, list) else []
    return [table for table in tables if table and isinstance(table, (dict, list))]


def _json_text(value: Any) -> bytes:
    text = json.dumps(value)
    for mark, nested in _DEEP.items():
        text = text.replace(json.dumps(mark), nested)
    return text.encode()


def _mutated(rng: random.Random, value: Any) -> tuple[Any, str]:
    """Returns a JSON value with one of its parts changed, and where; parts near the top are likelier."""
    holder, path = value, ""
    if not isinstance(holder, (dict, list)) or not holder:
        return rng.choice(_HOSTILE), "all"
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        deeper = [key for key in keys if isinstance(holder[key], (dict, list)) and holder[key]]
        key = rng.choice(deeper if deeper and rng.random() < 0.6 else keys)
        path += f"/{key!s:.40}"
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.4:
            break
        holder = inner
    way = rng.randrange(8)
    if way == 0:
        del holder[key]
        return value, f"{path} dropped"
    if way == 1 and isinstance(holder, dict):
        other = rng.choice(list(holder))
        holder[key], holder[other] = holder[other], holder[key]
        return value, f"{path} swapped with {other!s:.40}"
    if way == 2 and isinstance(holder, dict):
        new = rng.choice(("", "x", key + "x", "\0"))
        holder[new] = holder.pop(key)
        return value, f"{path} renamed {new!r:.40}"
    if way == 3 and type(inner) in (int, float):
        holder[key] = rng.choice((inner + 1, inner - 1, -inner, inner * 2, inner * 1000003, float(inner), str(inner)))
    elif way == 4 and isinstance(inner, list):
        holder[key] = rng.choice((inner[:-1], inner + inner[:1], inner * 2, inner[::-1], {"x": inner}))
    else:
        holder[key] = rng.choice(_HOSTILE)
    return value, f"{path} is {holder[key]!r:.60}"
