"""Suffix drafts: everything that ever followed the longest known suffix, with counts.

In: a request's own tokens and, where allowed, a corpus and past requests. Out: a tree of continuations, weighted by how
often each one followed. The index is a suffix automaton, built online in amortised constant time per token (Blumer et
al. 1985); use in speculation as in SAM decoding (arXiv 2411.10666).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from draftgraph.draft.base import Proposals, root_graph
from draftgraph.graph.token_graph import TokenGraph
from draftgraph.types import Context, Verdict

NAME = "suffix"
SEPARATOR = -1  # ends a text; never proposed
_MOST_COUNTED = 64  # suffixes of the text whose counts grow with each token, the longest first
_ESCAPE = 0.3  # share of belief that goes to the next shorter suffix
_SHARED_TOKENS = 2**18  # of finished requests; they take some 420 bytes each
_SHARED_PARTS = 4  # automata that they are in: an automaton cannot forget, so it goes as a whole


class SuffixAutomaton:
    """All substrings of the tokens appended so far, with the number of times each occurs. Never forgets one.

    Of a text that repeats one thing over and over, short substrings are counted too low; that keeps the cost per token
    constant.

    State 0 is the empty string. A state stands for the substrings that end at the same set of places; `length` is
    that of its longest one, `link` the state of its longest suffix that ends at more places.
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.length: list[int] = [0]
        self.count: list[int] = [0]
        self._last = 0

    def __len__(self) -> int:
        """Tokens appended so far."""
        return self.length[self._last]

    def append(self, token: int) -> None:
        """Adds one token at the end."""
        state = self._new_state(self.length[self._last] + 1, {}, 0)
        previous = self._last
        while previous >= 0 and token not in self.next[previous]:
            self.next[previous][token] = state
            previous = self.link[previous]
        self.link[state] = 0 if previous < 0 else self._split(previous, token)
        self._last = state
        for _ in range(_MOST_COUNTED):
            if state <= 0:
                break
            self.count[state] += 1
            state = self.link[state]

    def _split(self, previous: int, token: int) -> int:
        """Returns the state of exactly `previous` + `token`, cloned from a longer one where needed."""
        target = self.next[previous][token]
        if self.length[target] == self.length[previous] + 1:
            return target
        clone = self._new_state(self.length[previous] + 1, dict(self.next[target]), self.count[target])
        self.link[clone] = self.link[target]
        self.link[target] = clone
        while previous >= 0 and self.next[previous].get(token) == target:
            self.next[previous][token] = clone
            previous = self.link[previous]
        return clone

    def _new_state(self, length: int, transitions: dict[int, int], count: int) -> int:
        self.next.append(transitions)
        self.link.append(-1)
        self.length.append(length)
        self.count.append(count)
        return len(self.length) - 1


class Matcher:
    """The longest suffix of a text that occurs in an automaton, which may be growing."""

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self._state = 0
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens of the longest suffix."""
        return self._length

    def feed(self, token: int) -> None:
        """Extends the text by one token."""
        automaton = self.automaton
        self._settle()
        while self._state > 0 and token not in automaton.next[self._state]:
            self._state = automaton.link[self._state]
            self._length = automaton.length[self._state]
        if token in automaton.next[self._state]:
            self._state = automaton.next[self._state][token]
            self._length += 1
        self._settle()

    def suffixes(self) -> Iterator[tuple[int, int]]:
        """Yields (state, length of the match), the longest first, without the empty one."""
        self._settle()
        state, length = self._state, self._length
        while state > 0:
            yield state, length
            state = self.automaton.link[state]
            length = self.automaton.length[state]

    def _settle(self) -> None:
        """Moves to the clone that now stands for the matched string, if the state was split since."""
        automaton = self.automaton
        while self._state > 0 and automaton.length[automaton.link[self._state]] >= self._length:
            self._state = automaton.link[self._state]


class FinishedTexts:
    """The texts of requests that are finished, up to a number of tokens. Owns their automata, and which is to go next.

    Args:
        most_tokens: the least recently used part of the texts goes where there would be more.
    """

    def __init__(self, most_tokens: int = _SHARED_TOKENS) -> None:
        self._most = most_tokens // _SHARED_PARTS
        self.parts = [SuffixAutomaton()]  # the least recently used first

    def add(self, text: Sequence[int]) -> None:
        """Takes in a text; of one that is too long, the end."""
        text = text[-self._most + 1 :]
        roomy = [part for part in self.parts if len(part) + len(text) < self._most]
        part = roomy[-1] if roomy else SuffixAutomaton()
        # NOTE: while it grows it is not among them: where that is interrupted, it is lost and nothing is half done.
        self.parts = [other for other in self.parts if other is not part]
        for token in (*text, SEPARATOR):
            part.append(token)
        self.parts = [*self.parts, part][-_SHARED_PARTS:]

    def use(self, part: SuffixAutomaton) -> None:
        """Makes a part the most recently used one."""
        if part is not self.parts[-1] and part in self.parts:
            self.parts = [*(other for other in self.parts if other is not part), part]


class _Memory:
    """What one request matches against: its own text, and whatever it shares."""

    def __init__(self, shared: Sequence[SuffixAutomaton]) -> None:
        self._own = SuffixAutomaton()
        self.matchers = [Matcher(self._own), *map(Matcher, shared)]
        self._num_read = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Takes in the tokens that are new."""
        for token in tokens[self._num_read :]:
            for matcher in self.matchers:
                matcher.feed(token)
            self._own.append(token)
        self._num_read = max(self._num_read, len(tokens))

    def longest_match(self) -> SuffixAutomaton:
        """Returns the automaton that knows the longest end of the text."""
        return max(self.matchers, key=lambda matcher: matcher.length).automaton


class SuffixDrafter:
    """Proposes a tree per request. Keeps an automaton per request, dropped when the request ends.

    Args:
        depth: longest path to propose.
        corpus: token ids of a text whose continuations may be proposed to every request.
        keep_requests: whether finished requests join what later ones may be shown, the least recently used ones going.
    """

    def __init__(self, depth: int, corpus: Sequence[int] = (), keep_requests: bool = False) -> None:
        self._depth = depth
        self._corpus = SuffixAutomaton()
        for token in corpus:
            self._corpus.append(token)
        self._finished = FinishedTexts() if keep_requests else None
        self._memories: dict[int, _Memory] = {}

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[int], earlier: Proposals = ()
    ) -> list[tuple[TokenGraph, ...]]:
        return [(self._tree(context, budget),) for context, budget in zip(contexts, budgets, strict=True)]

    def observe(self, contexts: Sequence[Context], verdicts: Sequence[Verdict]) -> None:
        for context, verdict in zip(contexts, verdicts, strict=True):
            if verdict.finish is None:
                continue
            self._memories.pop(context.request, None)
            if self._finished is not None:
                self._finished.add((*context.tokens, *verdict.tokens))

    def restart(self) -> None:
        self._memories.clear()

    def _tree(self, context: Context, budget: int) -> TokenGraph:
        graph = root_graph(context)
        if budget == 0:
            return graph
        if context.request not in self._memories:
            shared = () if self._finished is None else self._finished.parts
            self._memories[context.request] = _Memory([self._corpus, *shared])
        memory = self._memories[context.request]
        memory.read(context.tokens)
        if self._finished is not None:
            self._finished.use(memory.longest_match())
        for matcher in memory.matchers:
            _grow(graph, matcher, budget, self._depth)
        return graph


def _grow(graph: TokenGraph, matcher: Matcher, budget: int, depth: int) -> None:
    """Adds the likeliest `budget` continuations to the graph, best first."""
    heap: list[tuple[float, int, int, int, int, int, float]] = []
    order = 0

    def push(state: int, node: int, level: int, belief: float, share: float) -> None:
        nonlocal order
        followers = {token: matcher.automaton.count[after] for token, after in matcher.automaton.next[state].items()}
        total = sum(followers.values())
        for token, count in followers.items():
            if token != SEPARATOR:
                acceptance = share * count / (total + 1)
                after = matcher.automaton.next[state][token]
                heapq.heappush(heap, (-belief * acceptance, order, after, node, level, token, acceptance))
                order += 1

    share = 1.0
    for state, length in matcher.suffixes():
        push(state, 0, 1, 1.0, share * (1 - 0.5**length))
        share *= _ESCAPE
        if share < 0.05:
            break
    for _ in range(budget):
        if not heap:
            break
        negated, _, state, parent, level, token, acceptance = heapq.heappop(heap)
        node = graph.add(parent, token, NAME, acceptance)
        if level < depth:
            push(state, node, level + 1, -negated, 1.0)
