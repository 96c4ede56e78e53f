"""From a path to a `Model`: shape, weights, words and ends, checked against each other.

In: a GGUF file or a folder with config.json. Out: a `Model`, immutable, shared by all requests. Never sees a runner.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftgraph.errors import ModelFileError
from draftgraph.models.base import ModelConfig, ModelWeights
from draftgraph.models.families import end_token_ids, load_weights, model_name, open_source, read_config
from draftgraph.models.gguf import GgufFile
from draftgraph.models.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model.

    Args:
        end_ids: every id that ends a text.
    """

    name: str
    path: Path
    config: ModelConfig
    weights: ModelWeights
    tokenizer: Tokenizer
    end_ids: tuple[int, ...]

    @property
    def num_weight_bytes(self) -> int:
        """Bytes one target pass reads, as they lie in memory."""
        arrays = [self.weights.final_norm, self.weights.head]
        for layer in self.weights.layers:
            arrays += [array for name in layer.__slots__ if (array := getattr(layer, name)) is not None]
        return sum(array.nbytes for array in arrays)


def load_model(path: Path) -> Model:
    """Loads a model; its tokenizer and shape are checked before its weights are read.

    Raises:
        ModelFileError, UnsupportedModelError, TokenizerError: the file is broken, or not of a kind that is supported.
    """
    source = open_source(path)
    config = read_config(source)
    tokenizer = tokenizer_from_gguf(source.metadata) if isinstance(source, GgufFile) else tokenizer_from_folder(path)
    if tokenizer.size > config.vocab_rows:
        raise ModelFileError(
            f"{path}: a tokenizer of {tokenizer.size} tokens over an embedding of {config.vocab_rows} rows",
            "at least one row per token",
            "use the tokenizer that belongs to these weights",
        )
    end_ids = end_token_ids(source)
    for token in end_ids:
        if not 0 <= token < tokenizer.size:
            raise ModelFileError(
                f"{path}: end token id {token} with {tokenizer.size} tokens",
                "an id of the tokenizer",
                "convert the model again",
            )
    return Model(model_name(source), path, config, load_weights(source, config), tokenizer, end_ids)
