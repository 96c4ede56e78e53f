"""The suffix automaton against a search over all substrings, and the drafts that are made from it."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import numpy as np
import pytest

from draftgraph.draft.base import root_graph
from draftgraph.draft.suffix import NAME, SEPARATOR, FinishedTexts, Matcher, SuffixAutomaton, SuffixDrafter
from draftgraph.graph.budget import select
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.rng import Greedy
from draftgraph.types import Context, FinishReason, MergeRule, Verdict, Window

Text = tuple[int, ...]


def occurrences(part: Text, text: Text) -> int:
    return sum(text[at : at + len(part)] == part for at in range(len(text) - len(part) + 1))


def walk(automaton: SuffixAutomaton, part: Text) -> int | None:
    """The state of `part`, or None where it does not occur."""
    state = 0
    for token in part:
        if token not in automaton.next[state]:
            return None
        state = automaton.next[state][token]
    return state


def assert_equal_to_search(automaton: SuffixAutomaton, text: Text, alphabet: int) -> None:
    parts = {text[a:b] for a, b in itertools.combinations(range(len(text) + 1), 2)}
    for part in parts:
        state = walk(automaton, part)
        assert state is not None
        assert automaton.count[state] == occurrences(part, text)
        assert automaton.length[automaton.link[state]] < len(part) <= automaton.length[state]
        followers = {token: occurrences((*part, token), text) for token in range(-1, alphabet)}
        found = {token: automaton.count[after] for token, after in automaton.next[state].items()}
        assert found == {token: count for token, count in followers.items() if count}
    absent = {part for n in (1, 2, 3) for part in itertools.product(range(alphabet), repeat=n)} - parts
    assert all(walk(automaton, part) is None for part in absent)


@pytest.mark.parametrize("seed", range(12))
def test_counts_and_continuations_equal_a_search_over_all_substrings(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = rng.choice([1, 2, 2, 3])
    automaton, text = SuffixAutomaton(), ()
    for at in range(30):
        token = SEPARATOR if rng.random() < 0.05 else rng.randrange(alphabet)
        automaton.append(token)
        text += (token,)
        if at % 6 == 5:
            assert_equal_to_search(automaton, text, alphabet)


class NaiveMatcher:
    """The longest match, kept as tokens: what still occurs of it after each new token."""

    def __init__(self) -> None:
        self.match: Text = ()

    def feed(self, token: int, indexed: Text) -> None:
        self.match += (token,)
        while self.match and not occurrences(self.match, indexed):
            self.match = self.match[1:]


@pytest.mark.parametrize("seed", range(25))
def test_a_matcher_stays_right_while_its_automaton_grows(seed: int) -> None:
    """Growth may split the very state that a matcher stands on; its match must then move to the clone."""
    rng = random.Random(seed)
    automaton, indexed = SuffixAutomaton(), ()
    matcher, naive = Matcher(automaton), NaiveMatcher()
    alphabet = rng.choice([2, 2, 3])
    for _ in range(120):
        token = rng.randrange(alphabet)
        if rng.random() < 0.5:
            automaton.append(token)
            indexed += (token,)
        else:
            matcher.feed(token)
            naive.feed(token, indexed)
        found = list(matcher.suffixes())
        assert max((length for _, length in found), default=0) == len(naive.match)
        assert [length for _, length in found] == sorted({length for _, length in found}, reverse=True)
        for state, length in found:
            assert state == walk(automaton, naive.match[len(naive.match) - length :])
        every = {walk(automaton, naive.match[at:]) for at in range(len(naive.match))}
        assert {state for state, _ in found} == every, "a suffix is missing"


@pytest.mark.parametrize("seed", range(10))
def test_a_text_matched_against_its_own_past_gives_the_longest_earlier_suffix(seed: int) -> None:
    rng = random.Random(seed)
    automaton, text = SuffixAutomaton(), ()
    matcher = Matcher(automaton)
    for _ in range(50):
        token = rng.randrange(2)
        matcher.feed(token)
        automaton.append(token)
        earlier, text = text, (*text, token)
        longest = max(n for n in range(len(text)) if n == 0 or occurrences(text[-n:], earlier))
        assert next((length for _, length in matcher.suffixes()), 0) == longest


def context(tokens: Sequence[int], request: int = 0, merge_length: int = 2) -> Context:
    return Context(request, tokens, Greedy(), 0.0, 100, MergeRule(merge_length))


def finish(drafter: SuffixDrafter, about: Context, tokens: Sequence[int] = ()) -> None:
    window = Window(np.asarray(about.tokens[-1:], np.int32), True, 0, 0, 100)
    (tree,) = select([root_graph(about)], [window])
    end = Verdict(tree, tuple(tokens), (-1,) * len(tokens), (0,), FinishReason.STOP, np.zeros((1, 0), np.int32))
    drafter.observe([about], [end])


def propose(
    drafter: SuffixDrafter, tokens: Sequence[int], request: int = 0, budget: int = 20, merge_length: int = 2
) -> TokenGraph:
    ((graph,),) = drafter.propose([context(tokens, request, merge_length)], [budget])
    graph.check()
    return graph


def children(graph: TokenGraph, node: int = 0) -> dict[int, float]:
    return {token: edge.acceptance for token, edge in graph.children[node].items()}


def test_everything_that_followed_is_proposed_and_what_followed_more_often_is_believed_more() -> None:
    graph = propose(SuffixDrafter(depth=2), [1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 2, 5, 0, 1, 2])
    found = children(graph)
    assert set(found) == {5, 6}
    assert found[5] > found[6] > 0
    assert set(children(graph, graph.children[0][5].child)) >= {0, 1}
    assert all(edge.sources == (NAME,) for edges in graph.children for edge in edges.values())


def test_a_longer_match_is_believed_more_than_a_shorter_one() -> None:
    found = children(propose(SuffixDrafter(depth=1), [1, 2, 3, 7, 0, 3, 8, 1, 2, 3]))
    assert found[7] > found[8] > 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("merge_length", [0, 2])
def test_proposals_stay_within_budget_and_depth_and_have_followed_before(seed: int, merge_length: int) -> None:
    rng = random.Random(seed)
    drafter, tokens = SuffixDrafter(depth=3), [rng.randrange(4)]
    for _ in range(40):
        tokens += [rng.randrange(4) for _ in range(rng.choice([1, 3]))]
        budget = rng.choice([0, 1, 4, 30])
        graph = propose(drafter, tokens, budget=budget, merge_length=merge_length)
        assert graph.num_drafted <= budget
        assert max(graph.depths) <= 3 or merge_length
        assert all(0 < edge.acceptance < 1 for edges in graph.children for edge in edges.values())
        assert set(children(graph)) <= {b for a, b in itertools.pairwise(tokens) if a == tokens[-1]}
        for node in range(1, len(graph)):
            if graph.depths[node] > 1:
                assert occurrences((graph.tokens[graph.parents[node]], graph.tokens[node]), tuple(tokens))


def test_one_token_repeated_three_thousand_times_is_indexed_in_time() -> None:
    start = time.perf_counter()
    graph = propose(SuffixDrafter(depth=8), [7] * 3000, budget=8)
    assert time.perf_counter() - start < 2
    assert set(graph.tokens[1:]) == {7}


def test_one_token_repeated_twelve_thousand_times_does_not_stall_everybody() -> None:
    """Work in the square of the length would take ten times as long as this bound allows, and more with each token."""
    automaton = SuffixAutomaton()
    start = time.perf_counter()
    for _ in range(12_000):
        automaton.append(7)
        assert time.perf_counter() - start < 2


def test_a_corpus_is_proposed_to_every_request() -> None:
    drafter = SuffixDrafter(depth=2, corpus=[1, 2, 3, SEPARATOR, 4])
    assert children(propose(drafter, [9, 1], request=0)).keys() == {2}
    assert children(propose(drafter, [8, 2], request=1)).keys() == {3}


def test_the_end_of_a_text_is_never_proposed() -> None:
    drafter = SuffixDrafter(depth=4, corpus=[1, 2, SEPARATOR, 1, 2, SEPARATOR, 3], keep_requests=True)
    graph = propose(drafter, [9, 1])
    assert graph.tokens[1:] == [2]
    about = context([5, 6], request=7)
    propose(drafter, about.tokens, request=7)
    finish(drafter, about, [1, 2])
    for tokens in ([9, 2], [1, 2], [5], [2]):
        assert SEPARATOR not in propose(drafter, tokens, request=8 + len(tokens)).tokens


def test_a_text_does_not_run_into_the_one_that_ended_before_it() -> None:
    drafter = SuffixDrafter(depth=4, keep_requests=True)
    for request, tokens in enumerate([[1, 2], [3, 4]]):
        propose(drafter, tokens, request)
        finish(drafter, context(tokens, request))
    assert propose(drafter, [0, 2], request=5).num_drafted == 0


@pytest.mark.parametrize("keep_requests", [True, False])
def test_finished_requests_are_remembered_only_where_that_is_allowed(keep_requests: bool) -> None:
    drafter = SuffixDrafter(depth=3, keep_requests=keep_requests)
    running = [8, 1]
    assert propose(drafter, running, request=1).num_drafted == 0
    about = context([5, 1, 2], request=0)
    propose(drafter, about.tokens, request=0)
    assert propose(drafter, running, request=1).num_drafted == 0, "a running request is nobody else's business"
    finish(drafter, about, [3, 4])
    running += [5, 1]  # the request began before the other one ended
    graph = propose(drafter, running, request=1)
    late = propose(drafter, [6, 2], request=2)
    # Its own text says 1 -> 5; only the finished one says 1 -> 2 and 2 -> 3.
    assert (2 in children(graph)) == keep_requests
    assert (3 in children(late)) == keep_requests
    assert 5 in children(graph)


@pytest.mark.parametrize("keep_requests", [True, False])
def test_what_is_kept_for_a_request_is_dropped_when_it_ends(keep_requests: bool) -> None:
    drafter = SuffixDrafter(depth=3, keep_requests=keep_requests)
    about = context([1, 2, 1])
    propose(drafter, about.tokens)
    assert any(kept for kept in vars(drafter).values() if isinstance(kept, dict))
    finish(drafter, about)
    assert not any(kept for kept in vars(drafter).values() if isinstance(kept, dict))
    assert children(propose(drafter, [1])).keys() == ({2} if keep_requests else set())
    finish(drafter, context([3], request=77))  # never proposed for


def test_finished_texts_take_no_more_than_their_room_and_the_least_used_go_first() -> None:
    texts = FinishedTexts(most_tokens=400)
    rng = random.Random(3)
    kept = [rng.randrange(50) for _ in range(40)]
    texts.add(kept)
    favourite = texts.parts[-1]
    for _ in range(100):
        texts.add([rng.randrange(50, 100) for _ in range(30)])
        texts.use(favourite)
        assert sum(map(len, texts.parts)) <= 400
    assert favourite in texts.parts
    for _ in range(20):
        texts.add([rng.randrange(50, 100) for _ in range(30)])
    assert favourite not in texts.parts


def test_a_finished_text_that_is_longer_than_there_is_room_for_leaves_its_end() -> None:
    texts = FinishedTexts(most_tokens=400)
    texts.add(range(5000))
    (part,) = (part for part in texts.parts if len(part))
    assert len(part) == 100
    matcher = Matcher(part)
    for token in (4997, 4998):
        matcher.feed(token)
    assert matcher.length == 2


def test_a_text_whose_taking_in_is_interrupted_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = FinishedTexts(most_tokens=400)
    texts.add([1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(SuffixAutomaton, "_split", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            texts.add([1, 2, 4])
    assert all(len(part) in (0, 4) for part in texts.parts)
    texts.add([5, 6])
    assert sum(map(len, texts.parts)) >= 3


def raise_interrupt(*_: object) -> int:
    raise KeyboardInterrupt
