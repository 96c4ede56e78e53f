"""Loading models in a child process with little memory to spare, so that a crash or a giant allocation is a result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from draftgraph.runner import native

needs_children = pytest.mark.skipif(
    native.core is None or not sys.platform.startswith("linux"), reason="needs the C++ core and Linux's limits"
)
_MEMORY = 2**28  # beyond what a sound model took
_PROGRAM = """
import json, os, re, resource, sys, time
import draftgraph as dg

def attempt(path):
    start = time.process_time()
    try:
        with dg.load(path, runner="native", draft="off", slots=1, threads=2) as llm:
            llm.generate("abc", max_tokens=3)
        outcome = "loaded"
    except dg.DraftGraphError as error:
        outcome = type(error).__name__
    except BaseException as error:
        outcome = f"untyped: {error!r}"
    return outcome, time.process_time() - start

folder = sys.argv[1]
attempt(os.path.join(folder, "sound.gguf"))
with open("/proc/self/status") as file:
    used = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", file.read())[1])
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
print(json.dumps({name: attempt(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}))
"""


def load_in_child(folder: Path, sound: bytes, files: Mapping[str, bytes]) -> dict[str, str]:
    """Loads each file with the native runner, after a sound one, and writes three tokens where that works.

    Returns:
        For each file "loaded", the name of a typed error, or "untyped: …"; none computes for more than two seconds.
    """
    folder = folder / "files"
    folder.mkdir()
    (folder / "sound.gguf").write_bytes(sound)
    numbered = {f"{number}.gguf": name for number, name in enumerate(files)}
    for number, name in numbered.items():
        (folder / number).write_bytes(files[name])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, folder, str(_MEMORY)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes.pop("sound.gguf")[0] == "loaded"
    slow = {numbered[number]: seconds for number, (_, seconds) in outcomes.items() if seconds > 2}
    assert not slow
    return {numbered[number]: outcome for number, (outcome, _) in outcomes.items()}
