"""After `close` the memory is back, three times in one process, and everything that is used again says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import draftgraph as dg
from draftgraph.errors import ClosedError
from draftgraph.runner import native
from support.tiny import tiny_config, write_gguf

PROGRAM = """
import gc, json, sys
import draftgraph as dg

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

with dg.load(sys.argv[1], slots=2, context=256) as llm:  # what every load leaves behind: imports, caches, threads
    llm.generate("abc", max_tokens=3)
found = []
for _ in range(3):
    before = resident()
    with dg.load(sys.argv[1], draft="suffix,model:" + sys.argv[1], slots=2, context=256) as llm:
        stream = llm.stream("abc", max_tokens=50)
        next(stream)
        opened = resident()
        kept = llm.runner.blocks  # what a user may keep is not the runner itself
    found.append((before, opened, resident()))
print(json.dumps(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or native.core is None, reason="reads /proc; native weights")
def test_the_memory_of_a_closed_model_is_back_also_while_the_object_and_a_stream_of_it_live(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=512, intermediate_size=2048, head_dim=64, num_layers=8, vocab_rows=320)
    model = write_gguf(tmp_path / "model.gguf", config=config)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for before, opened, after in json.loads(done.stdout):
        assert opened - before > 30 * 2**20, "too small a model to judge by"
        assert after - before < 0.1 * (opened - before)


def test_what_was_closed_refuses_everything_with_a_typed_error(tmp_path: Path) -> None:
    llm = dg.load(write_gguf(tmp_path / "model.gguf"))
    stream = llm.stream("hello", max_tokens=40)
    next(stream)
    llm.close()
    uses = [
        lambda: llm.generate("hello"), lambda: llm.stream("hello"), lambda: llm.prompt_ids("hello"),
        lambda: llm.model, lambda: llm.runner, lambda: llm.engine, stream.finish, llm.__enter__,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ClosedError, match="load it again"):
            use()
    stream.close()
    llm.close()
    assert llm.is_closed
