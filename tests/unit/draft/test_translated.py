"""A draft model with another vocabulary: what it reads, what it proposes in the target's tokens, and what it keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgraph.draft.base import GrowToBudget, Proposals, root_graph
from draftgraph.draft.model import ModelDrafter
from draftgraph.draft.translated import TranslatedDrafter, translated
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_gguf
from draftgraph.models.translation import TokenTranslation
from draftgraph.rng import Greedy, SeededNoise
from draftgraph.types import Context, FinishReason, MergeRule, TargetRows, Verdict, VerifyBatch, Window
from support.rigs import Logits, TableRunner
from support.vocabularies import byte_level_metadata, learned_metadata, sentencepiece_metadata

BYTES = tokenizer_from_gguf(learned_metadata([], 0))
TURNED = tokenizer_from_gguf(learned_metadata([], 0, turn=77))
JOINED = tokenizer_from_gguf(learned_metadata([b"xy", b"xyz"], 2, turn=5))  # has "xy" and "xyz"
SMALL = tokenizer_from_gguf(byte_level_metadata("smollm", 120))
WHOLE = tokenizer_from_gguf(byte_level_metadata("llama-bpe"))
LARGE = tokenizer_from_gguf(byte_level_metadata("qwen2"))
PIECES = tokenizer_from_gguf(sentencepiece_metadata())
Text = tuple[int, ...]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=False)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


def random_logits(seed: int, size: int) -> Logits:
    return lambda text: np.random.default_rng([seed, *text[-3:]]).normal(0, 2, size)


def sure_of(tokenizer: Tokenizer, following: dict[str, dict[str, float]]) -> Logits:
    """After a text that ends in a key, these tokens with these probabilities; the longest key counts."""

    def logits(text: Text) -> np.ndarray:
        written = tokenizer.decode(text)
        key = max((key for key in following if written.endswith(key)), key=len)
        row = np.full(tokenizer.size, -60.0)
        for token, prob in following[key].items():
            (token_id,) = encode(tokenizer, token)
            row[token_id] = math.log(prob)
        return row

    return logits


class ReadingRunner(TableRunner):
    """Remembers the text of every node it computed."""

    def __init__(self, tokenizer: Tokenizer, logits: Logits | None = None, **options: int) -> None:
        super().__init__(logits or random_logits(0, tokenizer.size), tokenizer.size, **options)
        self.computed: list[Text] = []

    def extend(self, batch: VerifyBatch) -> TargetRows:
        before = {slot: len(self._open[slot]) for slot in batch.slots}
        rows = super().extend(batch)
        for slot in batch.slots:
            self.computed += self._open[slot][before[slot] :]
        return rows


def context(tokens: Sequence[int], request: int = 0, *, seed: int = -1, max_depth: int = 50) -> Context:
    """Greedy, or with `seed` at temperature 1."""
    sampled = seed >= 0
    noise = SeededNoise(seed) if sampled else Greedy()
    return Context(request, tokens, noise, float(sampled), max_depth, MergeRule(0))


def drafter_for(
    draft: Tokenizer, target: Tokenizer, runner: TableRunner, width: int = 2, depth: int = 3
) -> TranslatedDrafter:
    return TranslatedDrafter(runner, TokenTranslation(draft, target), width, depth)


def propose(drafter: TranslatedDrafter | ModelDrafter, about: Context, budget: int = 8) -> TokenGraph:
    ((graph,),) = drafter.propose([about], [budget])
    graph.check()
    return graph


def verdict(about: Context, tokens: Sequence[int], finish: FinishReason | None = None) -> Verdict:
    (tree,) = select([root_graph(about)], [Window(np.asarray(about.tokens[-1:], np.int32), True, 0, 0, 10**6)])
    return Verdict(tree, tuple(tokens), (-1,) * len(tokens), (0,), finish, np.zeros((1, 0), np.int32))


def estimates(graph: TokenGraph) -> dict[Text, float]:
    """path below the root -> estimate of its last token."""
    found: dict[Text, float] = {}
    pending: list[tuple[Text, int]] = [((), 0)]
    while pending:
        path, node = pending.pop()
        for token, edge in graph.children[node].items():
            found[(*path, token)] = edge.acceptance
            pending.append(((*path, token), edge.child))
    return found


def spelled(tokenizer: Tokenizer, graph: TokenGraph) -> dict[str, float]:
    named = {"|".join(tokenizer.decode([t]) for t in path): value for path, value in estimates(graph).items()}
    return {path: value for path, value in named.items() if value > 1e-9}


# What it proposes


@pytest.mark.parametrize("seed", [-1, *range(8)])
def test_where_tokens_match_one_to_one_it_proposes_what_a_draft_model_with_the_targets_vocabulary_does(
    seed: int,
) -> None:
    """The same nodes, estimates and, at a temperature, draws: the noise is the target's, by its ids and places."""
    there = TokenTranslation(TURNED, BYTES)
    to_target = np.array([(there.to_target([token]) or [0])[0] for token in range(TURNED.size)])

    def own(text: Text) -> np.ndarray:
        return random_logits(abs(seed), BYTES.size)(text)

    def theirs(text: Text) -> np.ndarray:
        return own(tuple(there.to_target(text)))[to_target]

    about = context(encode(BYTES, "12 + 34"), seed=seed)
    expected = estimates(propose(ModelDrafter(TableRunner(own, BYTES.size), 2, 3), about))
    found = estimates(propose(drafter_for(TURNED, BYTES, TableRunner(theirs, TURNED.size)), about))
    assert len(found) > 8
    assert found.keys() == expected.keys()
    assert np.allclose([found[path] for path in expected], list(expected.values()))


def test_draft_tokens_that_make_one_target_token_are_joined_and_their_shares_move_with_them() -> None:
    logits = sure_of(BYTES, {" ": {"x": 0.6, "1": 0.4}, "x": {"y": 0.75, "2": 0.25}, "1": {"2": 1.0}})
    graph = propose(drafter_for(BYTES, JOINED, TableRunner(logits, BYTES.size), depth=2), context(encode(JOINED, "a ")))
    found = spelled(JOINED, graph)
    assert found == pytest.approx({"xy": 0.45, "x": 0.15, "x|2": 1.0, "1": 0.4, "1|2": 1.0})


def test_a_draft_token_that_is_several_target_tokens_becomes_a_chain() -> None:
    logits = sure_of(JOINED, {" ": {"xyz": 0.7, "x": 0.3}})
    graph = propose(drafter_for(JOINED, BYTES, TableRunner(logits, JOINED.size), depth=1), context(encode(BYTES, "a ")))
    assert spelled(BYTES, graph) == pytest.approx({"x": 1.0, "x|y": 0.7, "x|y|z": 1.0})


@pytest.mark.parametrize("seed", range(20))
def test_after_a_joined_token_the_noise_is_that_of_the_targets_own_place(seed: int) -> None:
    digits = {str(n): 0.1 for n in range(10)}
    logits = sure_of(BYTES, {" ": {"x": 1.0}, "x": {"y": 1.0}, "y": digits})
    about = context(encode(JOINED, "a "), seed=seed)
    graph = propose(drafter_for(BYTES, JOINED, TableRunner(logits, BYTES.size), width=1), about)
    ids = [encode(JOINED, digit)[0] for digit in digits]
    _, noise = about.noise.contenders(np.zeros(JOINED.size), len(about.tokens) + 1, np.inf)
    drawn = max(ids, key=lambda token: noise[token])
    assert list(estimates(graph))[-1] == (*encode(JOINED, "xy"), drawn)


def test_the_end_of_a_turn_is_proposed_by_its_name_and_nothing_for_markup_that_the_target_lacks() -> None:
    tokens = byte_level_metadata("smollm", 0)["tokenizer.ggml.tokens"]
    draft = tokenizer_from_gguf(
        byte_level_metadata("smollm", 0) | {"tokenizer.ggml.tokens": ["<|strange|>", tokens[2], tokens[1], *tokens[3:]]}
    )

    def logits(text: Text) -> np.ndarray:
        return np.where(np.arange(draft.size) == 0, 9.0, np.where(np.arange(draft.size) == 1, 5.0, 0.0))

    graph = propose(drafter_for(draft, BYTES, TableRunner(logits, draft.size), width=1, depth=1), context([40]))
    assert graph.tokens[1:] == [2]  # <|im_end|>, which is the draft model's token 1


def test_translated_estimates_sum_to_what_the_hypotheses_had() -> None:
    """Hypotheses with one text add up, a drawn-out merge included; no estimate exceeds 1."""
    graph = TokenGraph([0], MergeRule(1))
    a, b = graph.add(0, 10, "s", 0.5), graph.add(0, 11, "s", 0.3)
    graph.add(a, 12, "s", 0.5)
    graph.add(b, 12, "s", 1.0)
    assert graph.num_merged == 1
    into = translated(graph, TokenGraph([7], MergeRule(0)), lambda path: [token // 2 for token in path])
    # 10 and 11 are both 5 over there
    assert estimates(into) == pytest.approx({(5,): 0.8, (5, 6): 0.55 / 0.8})


# What it reads and keeps


@pytest.mark.parametrize(("draft", "target"), [(SMALL, LARGE), (LARGE, WHOLE), (PIECES, LARGE), (SMALL, PIECES)])
def test_the_draft_model_keeps_whole_words_and_reads_the_rest_anew(draft: Tokenizer, target: Tokenizer) -> None:
    runner = ReadingRunner(draft)
    drafter = drafter_for(draft, target, runner)
    ids = encode(target, "The quick brown fox doesn't jump over the lazy dog; it")
    for length in range(4, len(ids)):
        about = context(ids[:length])
        runner.computed.clear()
        propose(drafter, about)
        text = text_of(target, ids[:length])
        assert text in {text_of(draft, computed) for computed in runner.computed}
        assert all(text_of(draft, c)[: len(text)] == text[: len(text_of(draft, c))] for c in runner.computed)
        drafter.observe([about], [verdict(about, ids[length : length + 1])])
        (kept,) = runner.texts.values()
        after = text_of(target, ids[: length + 1])
        last_word = after.rindex(b" ")
        assert text_of(draft, kept) == after[:last_word]
        assert len(runner.computed) < 40


_TEXT = st.lists(st.text(max_size=5).map(str.encode) | st.binary(max_size=5) | st.just(b" the"), max_size=25)


@settings(max_examples=120, deadline=None)
@given(_TEXT, st.integers(0, 40), st.integers(0, 40), st.data())
def test_whatever_the_text_and_the_vocabularies_the_two_texts_agree(
    words: list[bytes], num_merges: int, other_merges: int, data: st.DataObject
) -> None:
    """Merges cut characters anywhere, and so does the text between two steps; white space may be missing for long."""
    draft = tokenizer_from_gguf(learned_metadata(words, num_merges, turn=9))
    target = tokenizer_from_gguf(learned_metadata(words[1::2], other_merges))
    runner = ReadingRunner(draft, context_length=90)
    drafter = drafter_for(draft, target, runner)
    ids = data.draw(st.lists(st.integers(3, target.size - 1), min_size=1, max_size=90))
    while len(ids) < 120:
        about = context(tuple(ids), seed=data.draw(st.sampled_from([-1, 3])))
        runner.computed.clear()
        graph = propose(drafter, about, data.draw(st.integers(0, 5)))
        assert all(0 <= token < target.size for token in graph.tokens)
        text = text_of(target, ids)
        assert all(text_of(draft, c)[: len(text)] == text[: len(text_of(draft, c))] for c in runner.computed)
        if graph.num_drafted:
            assert text in {text_of(draft, computed) for computed in runner.computed}
        path = max(estimates(graph), key=len, default=())
        fresh = [
            *path[: data.draw(st.integers(0, 3))],
            *data.draw(st.lists(st.integers(3, target.size - 1), max_size=9)),
        ]
        drafter.observe([about], [verdict(about, fresh)])
        ids += fresh or [40]
        for kept in runner.texts.values():
            assert text_of(target, ids).startswith(text_of(draft, kept))
    drafter.observe([context(ids)], [verdict(context(ids), [], FinishReason.STOP)])
    assert not runner.texts


def test_a_long_text_is_read_once_and_never_beyond_what_is_settled() -> None:
    runner = ReadingRunner(SMALL, context_length=4000)
    drafter = drafter_for(SMALL, LARGE, runner, width=1, depth=1)
    for word in (" word", "nowhitespace", "é"):
        ids = encode(LARGE, "begin" + word * 150)
        runner.computed.clear()
        about = context(ids)
        propose(drafter, about)
        assert len(set(runner.computed)) == len(runner.computed)
        (kept,) = runner.texts.values()
        assert text_of(LARGE, ids).startswith(text_of(SMALL, kept))
        assert len(max(runner.computed, key=len)) - len(kept) <= 65
        drafter.observe([about], [verdict(about, [40], FinishReason.STOP)])


class FromTheEnd:
    """Target tokens are figures, 0 a space; draft tokens are figures or two of them, counted from the end of a word, so
    that every further figure moves all cuts of the word. 10 + 10 a + b stands for the figures a, b."""

    opening = ()
    mute = np.zeros(0, np.int32)
    pairs = (np.arange(10, dtype=np.int32), np.arange(10, dtype=np.int32))

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        ids: list[int] = []
        for word in "".join(map(str, tokens)).replace("0", " 0").split():
            odd = len(word) % 2
            ids += [int(figure) for figure in word[:odd]]
            ids += [10 + int(word[i : i + 2]) for i in range(odd, len(word), 2)]
        return ids

    def to_target(self, tokens: Sequence[int]) -> list[int]:
        return [int(figure) for token in tokens for figure in (str(token) if token < 10 else f"{token - 10:02}")]

    def is_border(self, before: int, after: int) -> bool:
        return after == 0


@pytest.mark.parametrize("length", [1, 5, 14, 15, 30, 31, 40, 90])
def test_what_may_still_be_cut_otherwise_is_not_kept(length: int) -> None:
    """Words of any length at the end of texts that are read in one or several chunks."""
    there = FromTheEnd()
    for num_words in (1, 20, 24, 26, 28, 30, 32, 40):
        runner = TableRunner(random_logits(0, 110), 110)
        drafter = TranslatedDrafter(runner, there, 1, 2)
        ids = [0, 1, 2] * num_words + [0] + [3 + n % 7 for n in range(length)]
        for figure in (4, 5, 6):
            about = context(tuple(ids))
            propose(drafter, about)
            (roots,) = runner._open.values()
            assert ids in [there.to_target(text) for text in roots]
            drafter.observe([about], [verdict(about, [figure])])
            ids.append(figure)


def test_a_text_of_nothing_that_the_draft_model_knows_gets_no_drafts() -> None:
    target = tokenizer_from_gguf(byte_level_metadata("smollm", 0) | {"tokenizer.ggml.add_bos_token": True})
    draft_tokens = ["<|none|>", "<|of|>", "<|these|>", *byte_level_metadata("smollm", 0)["tokenizer.ggml.tokens"][3:]]
    draft = tokenizer_from_gguf(byte_level_metadata("smollm", 0) | {"tokenizer.ggml.tokens": draft_tokens})
    runner = ReadingRunner(draft)
    drafter = drafter_for(draft, target, runner)
    begin = context([1])  # the begin token alone
    assert propose(drafter, begin).num_drafted == 0
    assert not runner.texts
    drafter.observe([begin], [verdict(begin, [40])])
    assert propose(drafter, context([1, 40])).num_drafted > 0


# Among others


class Recorder(GrowToBudget):
    """Grows to the budget, unless it is told to decline; remembers what it was asked."""

    def __init__(self, most_guesses: int = 0, wanted: bool = True) -> None:
        self.most_guesses = most_guesses
        self.wanted = wanted
        self.behind: list[Sequence[int]] = []

    def start(self, contexts: Sequence[Context], behind: Sequence[int], earlier: Proposals) -> list[bool]:
        self.behind.append(behind)
        return [self.wanted] * len(contexts)

    def guesses(self, context: Context, earlier: Sequence[TokenGraph]) -> list[tuple[int, ...]]:
        """The first chain of the first graph."""
        path: tuple[int, ...] = ()
        node = 0
        while earlier and earlier[0].children[node] and len(path) < self.most_guesses:
            token, edge = next(iter(earlier[0].children[node].items()))
            path, node = (*path, token), edge.child
        return [path] if path else []


def test_the_growth_policy_decides_and_is_told_how_many_draft_tokens_are_to_be_read() -> None:
    ids = encode(LARGE, "The quick brown")
    there = TokenTranslation(BYTES, LARGE)
    policy, runner = Recorder(wanted=False), ReadingRunner(BYTES)
    graph = propose(TranslatedDrafter(runner, there, 2, 3, policy, "model:x"), context(ids))  # type: ignore[arg-type]
    assert graph.num_drafted == 0
    assert runner.num_passes == 0
    assert policy.behind == [[len("The quick brown") - 1]]
    policy.wanted = True
    graph = propose(TranslatedDrafter(runner, there, 2, 3, policy, "model:x"), context(ids))
    assert {edge.sources for edges in graph.children for edge in edges.values()} == {("model:x",)}


def test_what_others_proposed_is_computed_as_a_guess_in_the_draft_models_tokens() -> None:
    logits = sure_of(BYTES, {" ": {"x": 1.0}, "x": {"y": 1.0}, "y": {"z": 1.0}, "z": {"!": 1.0}})
    about = context(encode(JOINED, "a "))
    guess = root_graph(about)
    guess.add(0, encode(JOINED, "xyz")[0], "suffix", 0.9)
    for most_guesses, passes in ((0, 4), (3, 1)):
        runner = ReadingRunner(BYTES, logits)
        drafter = TranslatedDrafter(runner, TokenTranslation(BYTES, JOINED), 1, 4, Recorder(most_guesses))
        ((graph,),) = drafter.propose([about], [8], [(guess,)])
        assert list(estimates(graph)) == [tuple(encode(JOINED, "xyz")), tuple(encode(JOINED, "xyz!"))]
        assert runner.num_passes == passes


def test_requests_share_each_pass_and_more_than_there_are_slots_for_get_bare_graphs() -> None:
    texts = ["The quick", "brown fox jumps", "over the lazy", "dog"]
    alone = [propose(drafter_for(SMALL, LARGE, ReadingRunner(SMALL)), context(encode(LARGE, text))) for text in texts]
    runner = ReadingRunner(SMALL, num_slots=3)
    drafter = drafter_for(SMALL, LARGE, runner)
    contexts = [context(encode(LARGE, text), request=n) for n, text in enumerate(texts)]
    graphs = [graph for (graph,) in drafter.propose(contexts, [8, 8, 0, 8])]
    assert runner.num_passes == 3
    assert [graph.num_drafted for graph in graphs] == [
        alone[0].num_drafted,
        alone[1].num_drafted,
        0,
        alone[3].num_drafted,
    ]
    assert estimates(graphs[3]) == estimates(alone[3])
    assert drafter.propose(contexts, [8] * 4)[2][0].num_drafted == 0  # no slot is left
    assert drafter.propose(contexts[2:3], [8])[0][0].num_drafted > 0  # the absent give theirs back
    ended = [verdict(about, [40], FinishReason.CANCELLED) for about in contexts]
    drafter.observe(contexts, ended)
    assert runner.num_free_slots == 3
    assert not any(kept for kept in vars(drafter).values() if isinstance(kept, dict))
    assert propose(drafter, contexts[2]).num_drafted > 0


def test_a_step_that_failed_leaves_nothing_behind() -> None:
    ids = encode(LARGE, "The quick brown fox")
    runner = ReadingRunner(SMALL)
    drafter = drafter_for(SMALL, LARGE, runner)
    first = propose(drafter, context(ids))
    assert estimates(propose(drafter, context(ids))) == estimates(first)  # as after a step that raised
