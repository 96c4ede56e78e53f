"""Which runner computes a model: the native one where it can, else the reference runner.

In: a model and the engine's settings. Out: a runner with its memory allocated.
"""

from __future__ import annotations

from draftgraph.config import EngineConfig
from draftgraph.environment import kernel_level, num_cores
from draftgraph.errors import UnsupportedModelError
from draftgraph.models.families import load_weights
from draftgraph.models.loader import Model
from draftgraph.runner.native import NativeRunner, why_not
from draftgraph.runner.paged import PagedRunner
from draftgraph.runner.reference import ReferenceRunner


def open_runner(model: Model, config: EngineConfig, context_length: int, max_open: int) -> PagedRunner:
    """Returns the runner that `config.runner` names; "auto" is the native one where it can compute the model.

    Raises:
        UnsupportedModelError: "native" was named and cannot compute it.
    """
    obstacle = why_not(model.source, model.config)
    if config.runner == "native" and obstacle is not None:
        raise UnsupportedModelError(
            f"--runner native with {model.name}: {obstacle}", "--runner auto or reference", "see `draftgraph doctor`"
        )
    vocab_size = model.tokenizer.size
    if config.runner == "reference" or obstacle is not None:
        weights = load_weights(model.source, model.config)
        return ReferenceRunner(
            model.config,
            weights,
            vocab_size=vocab_size,
            context_length=context_length,
            num_slots=config.slots,
            max_open=max_open,
        )
    return NativeRunner(
        model.source,
        model.config,
        vocab_size=vocab_size,
        context_length=context_length,
        num_slots=config.slots,
        max_open=max_open,
        threads=config.threads or num_cores(),
        level=kernel_level(),
    )
