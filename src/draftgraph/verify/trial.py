"""Grammars are tried in another process before this one compiles them: a native library's crash must not be ours.

In: sources of grammars, from anyone. Out: what is wrong with each, or nothing. The other process (`trial_worker.py`)
has half the stack that this one's threads have, and limits on time and memory: what it survives is compiled here in
about the same time. It starts with the first grammar, is started again after it died, and ends with its owner. Knows
nothing of schemas, requests or masks.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path

from draftgraph.errors import CapacityError

_SECONDS = 2.0  # of CPU time for one grammar
_PATIENCE = 20.0  # seconds by the clock, on a busy machine
_MEGABYTES = 512  # beyond the words
_STACK_KIB = 1024  # threads here have 2 MiB or more
_MOST_KNOWN = 256  # grammars whose outcome is remembered
_WORKER = Path(__file__).with_name("trial_worker.py")


class GrammarTrial:
    """Owns the other process. Any thread may call it; grammars are tried one at a time.

    Args:
        words: [n] what each token adds to a text.
        end_ids: tokens that end a text.
        library: the folder that llguidance is imported from.
    """

    def __init__(self, words: Sequence[bytes], end_ids: Collection[int], library: str) -> None:
        setup = {"tokens": [piece.decode("latin-1") for piece in words], "ends": sorted(end_ids)}
        self._setup = json.dumps(setup).encode() + b"\n"
        self._library = library
        self._lock = threading.Lock()
        self._known: OrderedDict[str, str] = OrderedDict()  # source -> outcome, the least recently used first
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., GrammarTrial] | None = None

    def fault(self, source: str) -> str:
        """Returns what is wrong with a grammar, "" if nothing is.

        Raises:
            CapacityError: the other process cannot be started.
        """
        with self._lock:
            if source in self._known:
                self._known.move_to_end(source)
                return self._known[source]
            outcome = self._try_out(source)
            self._known[source] = outcome
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
            return outcome

    def close(self) -> None:
        """Ends the other process; it is started again if it is needed."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def _try_out(self, source: str) -> str:
        process = self._process or self._start()
        assert process.stdin is not None, "opened as a pipe"
        assert process.stdout is not None, "opened as a pipe"
        answer = b""
        watch = threading.Timer(_PATIENCE, process.kill)
        watch.start()
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(source).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        watch.cancel()
        if answer.endswith(b"\n"):
            return str(json.loads(answer))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        self.close()
        died_of = signal.Signals(-code).name if (code := process.returncode or 0) < 0 else ""
        return _DEATHS.get(died_of, "it crashes the compiler of grammars")

    def _start(self) -> subprocess.Popen[bytes]:
        limits = [str(_SECONDS), str(_MEGABYTES), str(_STACK_KIB)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER), *limits, self._library],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise CapacityError(
                f"the process that tries grammars cannot be started: {error.strerror}",
                "room for one more process",
                "end other programs, or do without grammars",
            ) from error
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)
        assert process.stdin is not None, "opened as a pipe"
        with contextlib.suppress(OSError):
            process.stdin.write(self._setup)
            process.stdin.flush()
        return process


# The signal by which the other process died -> what that says of the grammar.
_DEATHS: dict[str, str] = {
    "SIGPROF": f"it takes more than {_SECONDS:g} s to compile",
    "SIGKILL": f"it takes more than {_PATIENCE:g} s to compile, or too much memory",
    "SIGABRT": "it crashes the compiler of grammars, or takes too much memory",
}


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
        process.communicate()
