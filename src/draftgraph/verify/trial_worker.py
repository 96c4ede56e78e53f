"""The process that grammars are tried in: what crashes, hangs or fills the memory does it here.

In: on stdin, one JSON value a line: first the words of a model, then sources of grammars. Out: on stdout, for each
source one JSON string a line, what is wrong with it, empty if nothing is. It ends with its stdin, and dies of any
source that takes too much; `trial.py` reads how it died. Run as a script, so it imports nothing of ours.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

if sys.platform != "win32":
    import resource

_WALKS = 3  # arbitrary texts of a grammar
_TOKENS = 40  # of each, with a mask for every one


class Words:
    """The tokenizer that llguidance asks: forced text is written byte by byte, which is as good for a trial."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], end_ids: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = min(end_ids)
        self.special_token_ids = [i for i, piece in enumerate(tokens) if not piece or i in end_ids]
        self._bytes = {piece: i for i, piece in enumerate(tokens) if len(piece) == 1}

    def __call__(self, text: str) -> list[int]:
        return [self._bytes[bytes([byte])] for byte in text.encode() if bytes([byte]) in self._bytes]


def try_out(llguidance: Any, words: Any, ends: list[int], source: str) -> str:
    """Returns the library's error, or "" for a grammar that compiles and that some arbitrary text can follow."""
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = llguidance.LLMatcher(words, source, log_level=0, limits=limits)
    matcher.compute_bitmask()
    if matcher.is_error():
        return str(matcher.get_error())
    if all(_is_dead_end(matcher.deep_copy(), ends, choice) for choice in range(_WALKS)):
        return "every text of it that was tried runs into the library's limits"
    return ""


def _is_dead_end(matcher: Any, ends: list[int], choice: int) -> bool:
    """Whether an arbitrary text, each token of which the library allowed, can neither go on nor end."""
    for step in range(_TOKENS):
        mask = bytearray(matcher.compute_bitmask())
        for end in ends:  # NOTE: a matcher that has failed allows these too
            mask[end // 8] &= ~(1 << end % 8)
        allowed = [byte for byte, bits in enumerate(mask) if bits]
        if not allowed:
            return not matcher.is_accepting()
        byte = allowed[(choice + step * (2 * choice + 1)) % len(allowed)]
        token = 8 * byte + (mask[byte] & -mask[byte]).bit_length() - 1
        matcher = matcher.deep_copy()
        if not matcher.try_consume_tokens([token]):
            return True
    return False


def serve(seconds: float, megabytes: int) -> None:
    """Answers every line of stdin, each within this much CPU time, all within this much memory, where there are such
    limits."""
    import llguidance

    setup = json.loads(sys.stdin.readline())
    tokens = [piece.encode("latin-1") for piece in setup["tokens"]]
    wrapped = llguidance.TokenizerWrapper(Words(tokens, setup["ends"]))
    words = llguidance.LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=setup["ends"])
    _limit_memory(megabytes)
    for line in sys.stdin:
        _limit_time(seconds)
        error = try_out(llguidance, words, setup["ends"], json.loads(line))
        _limit_time(0)
        print(json.dumps(error), flush=True)


def _limit_time(seconds: float) -> None:
    """Ends this process after so much more CPU time, by SIGPROF; 0 lifts the limit."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(megabytes: int) -> None:
    """Lets this process take so much more memory than it has."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.path[:0] = sys.argv[4:]
    threading.stack_size(int(sys.argv[3]) * 1024)
    thread = threading.Thread(target=serve, args=(float(sys.argv[1]), int(sys.argv[2])), daemon=True)
    thread.start()
    thread.join()
