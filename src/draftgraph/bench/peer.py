"""Another engine beside ours: a program of its own that decodes greedily from the same prompt ids.

In: a peer's name, the model file, prompt ids. Out: what it wrote and how fast. The peers themselves live in the
checkout's `benchmarks/peers.py`, which the peer's own Python runs; nothing here depends on them.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgraph.errors import MissingPackageError

PEERS = ("llama.cpp", "transformers")
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "peers.py"


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One prompt written by a peer; `seconds` are those after the first token."""

    ids: tuple[int, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second after the first token; 0 if there is only that."""
        return (len(self.ids) - 1) / self.seconds if self.seconds > 0 else 0.0


class Peer:
    """A running peer; close it, or use it as a context manager.

    Args:
        name: one of `PEERS`.
        python: the Python that has the peer's packages.

    Raises:
        MissingPackageError: that Python, the peer or `benchmarks/peers.py` is not there, or it cannot run the model.
    """

    def __init__(self, name: str, python: str, model: Path, threads: int, context: int, script: Path = SCRIPT) -> None:
        self.name = name
        self._python = python
        if not script.is_file():
            raise MissingPackageError(
                f"--peer {name} without {script}", "a checkout, whose benchmarks/ has the peers", "install from a clone"
            )
        command = [python, str(script), name, str(model), "--threads", str(threads), "--context", str(context)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError as error:
            raise MissingPackageError(
                f"--peer-python {python}: {error.strerror}", "a Python that can be run", "change --peer-python"
            ) from error
        try:
            self._answer()
        except MissingPackageError:
            self.close()
            raise

    def write(self, ids: list[int], count: int) -> PeerRun:
        """Returns `count` tokens after a prompt, whatever ends a text."""
        assert self._process.stdin is not None, "the peer has a stdin"
        try:
            self._process.stdin.write(json.dumps({"ids": ids, "count": count}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which its answer says
        answer = self._answer()
        return PeerRun(tuple(answer["ids"]), answer["decode_seconds"])

    def close(self) -> None:
        """Ends the peer."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "the peer has a stdout"
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "missing" in answer:
            raise MissingPackageError(
                f"--peer {self.name}, which {self._python} does not have",
                f"a Python with {answer['missing']}",
                f"pip install {answer['missing']}, or name another Python with --peer-python",
            )
        if not answer:
            raise MissingPackageError(
                f"--peer {self.name}, which ended by itself",
                "a peer that can run this model",
                f"see what `python {SCRIPT.name} {self.name} MODEL --threads N --context N` says in {SCRIPT.parent}",
            )
        return answer
