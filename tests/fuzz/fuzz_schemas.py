"""Tries schemas that nobody would send and some that anybody might: none may end, hold up or mislead a server.

    PYTHONPATH=tests python -m fuzz.fuzz_schemas --minutes 5 --seed 1

Each is compiled as a request's is, and arbitrary texts of it are written. The compiling process may die; the one that
stands for the server may not, nor be held for long by one mask, and what was written must satisfy the schema by the
judgement of another library. All runs in a child, so that a crash is found and told.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import jsonschema_rs

from draftgraph.config import MAX_GRAMMAR, SamplingParams
from draftgraph.errors import ParameterError
from draftgraph.types import FinishReason
from draftgraph.verify.grammar import GrammarConstraint, Grammars
from fuzz.made_schemas import schema_text

_MOST_TOKENS = 80  # of a text
_WALKS = 3
_LONGEST_MASK = 1.0  # seconds for one place of a text, on a busy machine
_LONGEST_COMPILE = 30.0
_WORDS = [bytes([i]) for i in range(256)]
_WORDS += [
    b"true",
    b"false",
    b"null",
    b'": ',
    b'", "',
    b"00",
    b"12",
    b"999",
    b"000000",
    b"ab",
    b"name",
    b"}}",
    b"]]",
    b"{}",
]
_END = len(_WORDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--count", type=int, default=10**9, help="schemas at most")
    parser.add_argument("--seed", type=int, default=None, help="of the first schema; each has the next one")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    outcomes, faults = _run(seed, options.count, time.monotonic() + 60 * options.minutes)
    total = sum(outcomes.values())
    print(f"{total} schemas: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{total - len(faults)} passed, {len(faults)} failed")
    return 1 if faults else 0


def _run(seed: int, count: int, until: float) -> tuple[Counter[str], list[str]]:
    """Tries schemas in children, each as long as it lives. Returns how they ended, and the faults."""
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < count and time.monotonic() < until and len(faults) < 50:
        ours, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(theirs, seed + done))
        child.start()
        theirs.close()
        try:
            while done < count and time.monotonic() < until:
                if not ours.poll(_LONGEST_COMPILE + _LONGEST_MASK * _MOST_TOKENS):
                    raise EOFError("it hangs")
                outcome, fault = ours.recv()
                if fault:
                    faults.append(f"seed {seed + done}: {fault}")
                    print(f"FAULT {faults[-1]}", flush=True)
                outcomes[outcome] += 1
                done += 1
        except EOFError as error:
            child.kill()
            child.join()
            shown = schema_text(random.Random(seed + done))[:300]
            faults.append(f"seed {seed + done}: the process ended by {child.exitcode} {error}: {shown}")
            print(f"FAULT {faults[-1]}", flush=True)
            done += 1
        child.kill()
        child.join()
    return outcomes, faults


def _serve(results: Connection, seed: int) -> None:
    grammars = Grammars(len(_WORDS) + 1, (_END,), lambda token: (*_WORDS, b"")[token], lambda text: list(text.encode()))
    while True:
        results.send(_try_out(grammars, schema_text(random.Random(seed)), random.Random(seed)))
        seed += 1


def _try_out(grammars: Grammars, text: str, random: random.Random) -> tuple[str, str]:
    """Returns how a schema ended, and what was wrong with that, if anything."""
    began = time.perf_counter()
    try:
        made = grammars.constrain(SamplingParams(json_schema=text[:MAX_GRAMMAR]))
    except ParameterError as error:
        seconds = time.perf_counter() - began
        slow = f"refused after {seconds:.1f} s: {text[:300]}" if seconds > _LONGEST_COMPILE else ""
        died = "crash" in error.given or "takes more" in error.given
        return "the compiler died" if died else "refused", slow
    assert made is not None
    endings = Counter[str]()
    for _ in range(_WALKS):
        ending, written, slowest = _walk(made, random)
        if slowest > _LONGEST_MASK:
            return "written", f"one mask took {slowest:.1f} s: {text[:300]}"
        endings[ending] += 1
        if ending == FinishReason.STOP and not _satisfies(text, written):
            return "written", f"{written[:100]!r} does not satisfy {text[:300]}"
    if endings[FinishReason.GRAMMAR] == _WALKS:
        return "cut", f"every text of it is cut: {text[:300]}"
    return "written" if endings[FinishReason.STOP] else "long", ""


def _walk(made: GrammarConstraint, random: random.Random) -> tuple[str, bytes, float]:
    """Writes one arbitrary text. Returns how it ended, the text, and the longest time that one place took."""
    path: list[int] = []
    slowest = 0.0
    while len(path) < _MOST_TOKENS:
        began = time.perf_counter()
        mask = made.allowed(path)
        slowest = max(slowest, time.perf_counter() - began)
        if mask is None:
            break
        allowed = mask.nonzero()[0].tolist()
        if allowed[-1] == _END:
            if random.random() < 0.5:
                return FinishReason.STOP, _text(path), slowest
            allowed.pop()
        closing = [token for token in allowed if _WORDS[token] in (b"]", b"}", b",", b":")] or allowed
        path.append(random.choice(closing if random.random() < 0.6 else allowed))
    ending = made.ending(path)
    return ending or "unfinished", _text(path), slowest


def _text(path: Sequence[int]) -> bytes:
    return b"".join(_WORDS[token] for token in path)


def _satisfies(text: str, written: bytes) -> bool:
    """Whether another library finds that a text is JSON and satisfies the schema; True where it does not know."""
    try:
        value: Any = json.loads(written)
    except ValueError:
        return False
    if "Infinity" in json.dumps(value):  # JSON that no double holds; the judge knows doubles only
        return True
    schema = json.loads(text)
    if "x-guidance" in text or text.count("$ref") > 40:  # lenient by its own wish; or the judge would take for ever
        return True
    # The judge reads and divides doubles.
    if re.search(r'"multipleOf": (0\.|1e)', text) or re.search(rb"\d{16}", written.replace(b".", b"")):
        return True
    try:
        return bool(jsonschema_rs.is_valid(schema, value))
    except (ValueError, jsonschema_rs.ReferencingError):
        return True


if __name__ == "__main__":
    sys.exit(main())
