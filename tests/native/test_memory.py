"""Memory: the weights are held once, not once more as pages of the file they came from."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from draftgraph.models.families import Source
from draftgraph.models.gguf import GgufFile
from draftgraph.models.safetensors import SafetensorsFolder
from draftgraph.runner import choose, native
from support.tiny import write_gguf, write_hf_folder

PROGRAM = """
import re, sys
import draftgraph as dg
from draftgraph.runner.paged import cells_needed

def resident():
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(r"VmRSS:\\s+(\\d+)", file.read())[1])

before = resident()
with dg.load(sys.argv[1], draft="off", runner="native", slots=1, context=64) as llm:
    after = resident()
    c = llm.model.config
    cache = cells_needed(64, 1, 64 + 512) * c.num_layers * 2 * c.num_kv_heads * c.head_dim * 2
    assert llm.generate("The sky is", max_tokens=4).text
print(after - before, cache)
"""


@pytest.mark.model
@pytest.mark.skipif(native.core is None, reason="the C++ core is not built")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_loaded_model_takes_little_more_memory_than_its_file(smollm2_path: Path) -> None:
    runs = []
    for _ in range(3):  # what else a process happens to hold varies by a megabyte
        done = subprocess.run([sys.executable, "-c", PROGRAM, smollm2_path], capture_output=True, text=True, check=True)
        runs.append([int(number) for number in done.stdout.split()])
    grown, cache = min(runs)
    assert grown <= 1.25 * smollm2_path.stat().st_size + cache


def test_pages_are_given_back_all_the_while_weights_are_copied() -> None:
    class Counter:
        calls = 0

        def drop_pages(self) -> None:
            self.calls += 1

    counter = Counter()
    with choose._dropping_pages(cast(Source, counter)):
        deadline = time.monotonic() + 10
        while counter.calls < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    calls = counter.calls
    assert calls > 3  # once more at the end
    time.sleep(5 * choose._DROP_SECONDS)
    assert counter.calls == calls


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_tensors_are_the_same_after_their_pages_were_dropped(tmp_path: Path, kind: str) -> None:
    source: Any
    if kind == "gguf":
        source = GgufFile(write_gguf(tmp_path / "model.gguf"))
    else:
        source = SafetensorsFolder(write_hf_folder(tmp_path / "model"))
    views = {name: source.blocks(name) for name in source.names()}
    before = {name: view.tobytes() for name, view in views.items()}
    source.drop_pages()
    assert {name: view.tobytes() for name, view in views.items()} == before
