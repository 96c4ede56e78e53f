"""From a path to a `Model`: shape, tensors, words and ends, checked against each other.

In: a GGUF file or a folder with config.json. Out: a `Model`, immutable, shared by all requests. Never sees a runner.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftgraph.errors import ModelFileError
from draftgraph.models.base import ModelConfig
from draftgraph.models.families import Source, end_token_ids, model_name, open_source, read_config, weight_names
from draftgraph.models.gguf import GgufFile
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from draftgraph.models.tokenizer_gguf import count_tokens


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The shape and the tensors of a model; its weights stay in the file until a runner reads them."""

    name: str
    path: Path
    source: Source
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class Model(ModelFiles):
    """A model with its words.

    Args:
        end_ids: every id that ends a text.
    """

    tokenizer: Tokenizer
    end_ids: tuple[int, ...]


def load_model(path: Path) -> Model:
    """Opens a model and checks its shape, its tokenizer and its table of tensors; reads no weights.

    Raises:
        ModelFileError, UnsupportedModelError, TokenizerError: the file is broken, or not of a kind that is supported.
    """
    return read_words(open_files(path))


def open_files(path: Path) -> ModelFiles:
    """Opens a model and checks its shape and its table of tensors. Raises as `load_model`."""
    source = open_source(path)
    config = read_config(source)
    weight_names(source, config)
    return ModelFiles(model_name(source), path, source, config)


def count_words(files: ModelFiles) -> int | None:
    """Returns the size of the tokenizer to come, which the weights then need not wait for; None where only it tells."""
    count = count_tokens(files.source.metadata) if isinstance(files.source, GgufFile) else None
    return None if count is None or count > files.config.vocab_rows else count


def read_words(files: ModelFiles, chat_template: str | None = None) -> Model:
    """Reads the tokenizer and checks it against the shape. Raises as `load_model`, and as `asked_templates`.

    Args:
        chat_template: what the user wants instead of the model's own templates.
    """
    path, source, config = files.path, files.source, files.config
    tokenizer = tokenizer_from_gguf(source.metadata) if isinstance(source, GgufFile) else tokenizer_from_folder(path)
    if chat_template is not None:
        tokenizer = tokenizer.with_chat_template(chat_template)
    if tokenizer.size > config.vocab_rows:
        raise ModelFileError(
            f"{path}: a tokenizer of {tokenizer.size} tokens over an embedding of {config.vocab_rows} rows",
            "at least one row per token",
            "use the tokenizer that belongs to these weights",
        )
    if isinstance(source, GgufFile):
        for name in ("tokens", "merges", "token_type", "scores"):
            source.forget(f"tokenizer.ggml.{name}")
    end_ids = end_token_ids(source)
    for token in end_ids:
        if not 0 <= token < tokenizer.size:
            raise ModelFileError(
                f"{path}: end token id {token} with {tokenizer.size} tokens",
                "an id of the tokenizer",
                "convert the model again",
            )
    if tokenizer.chat_end_id is not None:
        end_ids = tuple(sorted({*end_ids, tokenizer.chat_end_id}))
    return Model(files.name, path, source, config, tokenizer, end_ids)
