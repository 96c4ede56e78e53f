"""Text to token ids and back, for any supported model file.

In: a GGUF file's metadata or a folder with `tokenizer.json`. Out: an immutable `Tokenizer`. Control tokens are found
here, in markup and raw prompts only; text of a message never becomes one. Knows nothing of models, requests or streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from draftgraph.errors import PromptError
from draftgraph.models.byte_pairs import TokenizerParts
from draftgraph.models.chat import RenderedChat, render_chat
from draftgraph.models.chat_templates import ChatTemplates, asked_templates, own_templates
from draftgraph.models.token_table import Kind, LiteralSplitter, is_hidden
from draftgraph.models.tokenizer_folder import read_folder
from draftgraph.models.tokenizer_gguf import read_gguf


class Tokenizer:
    """A vocabulary and its encoder. Immutable; per model, shared by all requests and threads.

    The text of ids is the text of their bytes joined, whatever stands around them, so pieces of a stream joined equal
    the text of the whole. Nothing is stripped: where SentencePiece puts a space before a first word, `decode` shows it.

    Args:
        parts: what `read_gguf` or `read_folder` found.
        chat_templates: to take the place of those in `parts`.
    """

    def __init__(self, parts: TokenizerParts, chat_templates: ChatTemplates | None = None) -> None:
        self._parts = parts
        self._templates = chat_templates or own_templates(parts.chat_templates)
        self._table = parts.table
        kinds = parts.table.kinds
        plain = [literal for literal in parts.literals if not is_hidden(kinds[literal.token_id])]
        self._markup = LiteralSplitter(parts.literals)
        self._content = LiteralSplitter(plain)
        self._normalized = LiteralSplitter(parts.normalized_literals)
        hidden = [literal.text for literal in parts.literals if is_hidden(kinds[literal.token_id]) and literal.text]
        self._control_literals = frozenset(hidden)
        self._special_ids = parts.table.ids_of(Kind.CONTROL, Kind.UNKNOWN, Kind.UNUSED)

    @property
    def size(self) -> int:
        """How many ids there are; a model may have more rows, whose ids must never be used."""
        return self._table.size

    @property
    def bos_id(self) -> int | None:
        return self._parts.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._parts.eos_id

    @property
    def add_bos(self) -> bool:
        """Whether every prompt begins with `bos_id`."""
        return self._parts.add_bos

    @property
    def chat_templates(self) -> ChatTemplates:
        return self._templates

    @property
    def chat_end_id(self) -> int | None:
        """The control token that ends a turn of a built-in chat template, if this vocabulary has it."""
        ends = (one.token_id for one in self._parts.literals if one.text == self._templates.end)
        return next((token_id for token_id in ends if token_id in self._special_ids), None)

    @property
    def chat_stop(self) -> tuple[str, ...]:
        """The texts before which answers in chats end: where a built-in template's end of turn is no control token."""
        return (self._templates.end,) if self._templates.end and self.chat_end_id is None else ()

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that have no text: control, unknown and unused tokens."""
        return self._special_ids

    @property
    def control_literals(self) -> frozenset[str]:
        """The texts that stand for control tokens in markup and raw prompts."""
        return self._control_literals

    def token_bytes(self, token_id: int) -> bytes:
        """Returns what the token adds to a text; nothing for a control token."""
        return self._table.piece(self._table.check_id(token_id))

    def token_label(self, token_id: int) -> str:
        """Returns the token for display: a control token's literal, other tokens' text, stray bytes as escapes."""
        piece = self.token_bytes(token_id)
        return piece.decode(errors="backslashreplace") if piece else self._table.labels[token_id]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Returns the text of the ids. Bytes that are no character become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Returns the ids of `text`, without a begin token.

        Args:
            special: whether literals of control tokens become those tokens, as in markup and raw prompts.

        Raises:
            PromptError: the text holds half a surrogate pair.
        """
        _check_text(text)
        return self._encode_parts((self._markup if special else self._content).split(text), at_start=True)

    def encode_prompt(self, text: str) -> list[int]:
        """Returns the ids of a raw prompt: control literals count, and a begin token is added where it is due.

        A prompt that already begins with the begin token's literal gets no second one.
        """
        ids = self.encode(text, special=True)
        if self.add_bos and ids[:1] != [self.bos_id]:
            assert self.bos_id is not None, "add_bos without a begin token"
            ids.insert(0, self.bos_id)
        return ids

    def encode_chat(self, rendered: RenderedChat) -> list[int]:
        """Returns the ids of a rendered chat: control tokens from the template's markup, never from the messages.

        The ids begin with one begin token if the template wrote any or the model wants one.
        """
        _check_text(rendered.text)
        ids: list[int] = []
        for part in self._markup.split(rendered.text, guard=rendered.guard):
            if isinstance(part, int):
                ids.append(part)
            else:
                content = self._content.split(part.replace(rendered.guard, ""))
                ids += self._encode_parts(content, at_start=not ids)
        num_begin = next((i for i, token_id in enumerate(ids) if token_id != self.bos_id), len(ids))
        if self.bos_id is not None and (num_begin or self.add_bos):
            ids[:num_begin] = [self.bos_id]
        return ids

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> list[int]:
        """Returns the prompt of a chat: the messages in the model's own template. See `render_chat`."""
        return self.encode_chat(self.render_messages(messages, variables=variables, now=now))

    def render_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> RenderedChat:
        """Returns the prompt of a chat as text. See `render_chat`."""
        tools = variables.get("tools") if isinstance(variables, Mapping) else None
        return render_chat(
            self._templates.choose(tools),
            messages,
            bos=self._label(self.bos_id),
            eos=self._label(self.eos_id),
            control_literals=self.control_literals,
            variables=variables or {},
            now=now,
        )

    def with_chat_template(self, asked: str) -> Tokenizer:
        """Returns this tokenizer with the chat template that the user asked for. Raises as `asked_templates`."""
        return Tokenizer(self._parts, asked_templates(asked, self._parts.chat_templates))

    def first_difference(self, other: Tokenizer) -> str | None:
        """Returns None if both have the same tokens under the same ids, else a sentence with the first difference."""
        return self._table.first_difference(other._table)

    def _label(self, token_id: int | None) -> str:
        return "" if token_id is None else self._table.labels[token_id]

    def _encode_parts(self, parts: Iterable[int | str], *, at_start: bool) -> list[int]:
        encoder = self._parts.encoder
        ids: list[int] = []
        for part in parts:
            inner = self._normalized.split(encoder.normalize(part)) if isinstance(part, str) else [part]
            for piece in inner:
                if isinstance(piece, int):
                    ids.append(piece)
                else:
                    ids += encoder.encode(piece, at_start=at_start)
                at_start = False
        return ids


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer in a GGUF file's metadata. Does not modify `metadata`.

    Raises:
        TokenizerError: a key is missing, broken or contradicts another, or the kind is not supported.
    """
    return Tokenizer(read_gguf(metadata))


def tokenizer_from_folder(path: Path) -> Tokenizer:
    """Returns the tokenizer in a folder's `tokenizer.json` and the files beside it.

    Raises:
        TokenizerError: a file is missing or broken, or the kind is not supported.
    """
    return Tokenizer(read_folder(path))


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"half a surrogate pair, {text[error.start]!r}, at character {error.start}",
            "text of whole Unicode characters",
            "send valid UTF-8, and escapes in pairs",
        ) from error
