"""The native runner's contract: a row's bits depend on its own ancestors alone, and it computes the file's model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from draftgraph.config import SamplingParams
from draftgraph.draft.base import Drafter
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.ngram import NgramDrafter
from draftgraph.draft.recycle import RecycleDrafter
from draftgraph.draft.suffix import SuffixDrafter
from draftgraph.models.families import load_weights
from draftgraph.models.loader import Model, load_model
from draftgraph.runner.native import NativeRunner, why_not
from draftgraph.runner.reference import ReferenceRunner
from draftgraph.types import Extension, VerifyBatch
from support.rigs import ScriptDrafter, make_engine, mixture, run, write
from support.tiny import tiny_config, tiny_tokenizer, write_gguf, write_hf_folder

native = pytest.importorskip("draftgraph._native", reason="the extension is not built")

SIZES = {"vocab_size": len(tiny_tokenizer().tokens), "context_length": 200, "num_slots": 4, "max_open": 120}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "rope_dim": 64}
KINDS = [None, "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def make_model(folder: Path, family: str = "llama", kind: str | None = "Q8_0", *, tied: bool = True) -> Model:
    path = folder / f"{family}-{kind}-{tied}.gguf"
    if not path.exists():
        write_gguf(path, family, quant=kind, tied=tied, config=tiny_config(family, **WIDE))
    return load_model(path)


def make_runner(model: Model, threads: int = 2, level: str = "") -> NativeRunner:
    return NativeRunner(model.source, model.config, **SIZES, threads=threads, level=level)


def tokens_of(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(250) for _ in range(count)]


def chain_rows(runner: NativeRunner, tokens: list[int], chunk: int) -> np.ndarray:
    """The rows of a text that is read `chunk` tokens at a time."""
    slot = runner.open()
    rows = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        parents = np.arange(-1, len(part) - 1, dtype=np.int32)
        rows.append(runner.extend(VerifyBatch((slot,), [Extension(np.array(part, np.int32), parents, 0)])).rows[0])
        runner.commit(slot, range(len(part)))
    runner.release(slot)
    return np.concatenate(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "mistral"])
def test_logits_are_near_the_reference_runner(folder: Path, family: str, kind: str | None) -> None:
    model = make_model(folder, family, kind, tied=kind != "Q6_K")
    text = tokens_of(12)
    reference = ReferenceRunner(model.config, load_weights(model.source, model.config), **SIZES)
    slot = reference.open()
    chain = Extension(np.array(text, np.int32), np.arange(-1, 11, dtype=np.int32), 0)
    expected = reference.extend(VerifyBatch((slot,), [chain])).rows[0]
    found = chain_rows(make_runner(model), text, 12)
    error = np.sqrt(np.mean((found - expected) ** 2)) / expected.std()
    # Unquantised types differ by the fp16 cache alone; quantised ones also by 8-bit activations.
    assert error < (0.002 if kind in (None, "F16", "BF16") else 0.3)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K", "BF16"])
def test_rows_do_not_depend_on_chunks_threads_or_level(folder: Path, family: str, kind: str) -> None:
    model = make_model(folder, family, kind)
    text = tokens_of(45)
    expected = chain_rows(make_runner(model, threads=1), text, 1)
    for level in native.kernel_levels():
        for threads, chunk in ((1, 45), (2, 7), (2, 20), (3, 16), (3, 40), (4, 33)):
            assert (chain_rows(make_runner(model, threads, level), text, chunk) == expected).all()


@pytest.mark.parametrize("first", [0, 3, 10, 19])
def test_logits_are_those_of_the_wanted_rows_where_threads_have_rows_of_their_own(folder: Path, first: int) -> None:
    model = make_model(folder, "llama", "Q4_K")
    text = tokens_of(20)
    runner = make_runner(model, threads=2)
    part = Extension(np.array(text, np.int32), np.arange(-1, 19, dtype=np.int32), first)
    found = runner.extend(VerifyBatch((runner.open(),), [part])).rows[0]
    assert (found == chain_rows(make_runner(model, threads=1), text, 1)[first:]).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("lengths", [(3, 1, 2), (6, 4, 5), (2, 30, 11)])
def test_rows_without_logits_change_none_of_the_others(folder: Path, lengths: tuple[int, ...], threads: int) -> None:
    model = make_model(folder, "gemma3", "Q4_K")
    runner, other = make_runner(model, threads=threads), make_runner(model, threads=1)
    texts = [tokens_of(length, length) for length in lengths]
    slots = tuple(runner.open() for _ in texts)
    for wanted in ((0, 1, 1), (1, 0, 2), (2, 1, 0), (0, 0, 0)):  # rows with logits, of each text the last ones
        parts = [
            Extension(np.array(text, np.int32), np.arange(-1, len(text) - 1, dtype=np.int32), len(text) - count)
            for text, count in zip(texts, wanted, strict=True)
        ]
        found = runner.extend(VerifyBatch(slots, parts)).rows
        for text, count, slot, rows in zip(texts, wanted, slots, found, strict=True):
            assert (rows == chain_rows(other, text, 1)[len(text) - count :]).all()
            runner.commit(slot, ())


@pytest.mark.parametrize("seed", range(6))
def test_every_node_of_a_random_tree_has_the_row_of_its_own_path(folder: Path, seed: int) -> None:
    model = make_model(folder, "gemma3" if seed % 2 else "llama", "Q4_K")  # gemma3 has layers with a window
    runner, rng = make_runner(model), random.Random(seed)
    prefix = tokens_of(20, seed)
    slot, other = runner.open(), runner.open()
    for s in (slot, other):
        start = Extension(np.array(prefix, np.int32), np.arange(-1, 19, dtype=np.int32), 20)
        runner.extend(VerifyBatch((s,), [start]))
        runner.commit(s, range(20))
    parents = [rng.randrange(-1, node) for node in range(30)]
    tokens = [rng.randrange(250) for _ in parents]
    rows = []
    for a, b in ((0, 4), (4, 19), (19, 30)):  # a tree that grows in several calls, beside another slot
        part = Extension(np.array(tokens[a:b], np.int32), np.array(parents[a:b], np.int32), 0)
        neighbour = Extension(np.array([rng.randrange(250)], np.int32), np.array([-1], np.int32), 0)
        rows.append(runner.extend(VerifyBatch((other, slot), [neighbour, part])).rows[1])
    found = np.concatenate(rows)
    for node in range(30):
        path, at = [], node
        while at >= 0:
            path.append(tokens[at])
            at = parents[at]
        alone = chain_rows(make_runner(model, threads=1), prefix + path[::-1], 1)
        assert (found[node] == alone[-1]).all()


def drafters(model: Model) -> dict[str, Drafter]:
    rng = random.Random(1)
    return {
        "model": ModelDrafter(make_runner(model), 3, 4),
        "mixture": mixture(NgramDrafter(6), SuffixDrafter(6), RecycleDrafter(6)),
        "noise": ScriptDrafter(lambda context: [(rng.randrange(i + 1), rng.randrange(300)) for i in range(12)]),
    }


@pytest.mark.parametrize("name", ["model", "mixture", "noise"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_the_text_is_the_plain_text_with_any_drafter(folder: Path, name: str, temperature: float, kind: str) -> None:
    model = make_model(folder, kind=kind)
    sampling = {"max_tokens": 60, "temperature": temperature, "seed": 5}
    plain = [
        write(make_engine(make_runner(model, threads=1)), tokens_of(n, n), 0, **sampling).output for n in (1, 9, 40)
    ]
    engine = make_engine(make_runner(model, threads=3), drafters(model)[name], prefill_chunk=16)
    requests = [
        engine.submit(tokens_of(n, n), SamplingParams(**sampling), budget)  # type: ignore[arg-type]
        for n, budget in ((1, 3), (9, 8), (40, 15))
    ]
    assert run(engine, *requests) == plain


def test_the_cache_after_rejections_is_a_fresh_prefills(folder: Path) -> None:
    model = make_model(folder, kind="Q5_K")
    runner = make_runner(model)
    engine = make_engine(runner, drafters(model)["noise"])
    request = engine.submit(tokens_of(10), SamplingParams(max_tokens=50), 10)
    for _ in range(20):
        engine.step()
    fresh = make_runner(model, threads=1)
    slot = fresh.open()
    known = request.tokens[: request.num_computed]
    chain = Extension(np.array(known, np.int32), np.arange(-1, len(known) - 1, dtype=np.int32), len(known))
    fresh.extend(VerifyBatch((slot,), [chain]))
    fresh.commit(slot, range(len(known)))
    for layer in range(model.config.num_layers):
        for one, two in zip(runner.committed_keys(request.slot, layer), fresh.committed_keys(slot, layer), strict=True):
            assert (one == two).all()
    runner.check()


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_safetensors_folder_gives_the_bits_of_its_gguf_twin(folder: Path, family: str, dtype: str) -> None:
    config = tiny_config(family, **WIDE)
    kind = None if dtype == "F32" else dtype
    one = load_model(write_gguf(folder / f"twin-{family}-{dtype}.gguf", family, quant=kind, config=config))
    two = load_model(write_hf_folder(folder / f"twin-{family}-{dtype}", family, dtype=dtype, config=config))
    assert why_not(two.source, two.config) is None
    text = tokens_of(20)
    assert (chain_rows(make_runner(one), text, 20) == chain_rows(make_runner(two), text, 7)).all()
