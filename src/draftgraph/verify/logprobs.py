"""Log-probabilities: how likely the model itself found what was written.

In: the raw logits of the row that a token was drawn from. Out: its log-probability and the likeliest alternatives. They
are those of the model alone, log softmax(logits): temperature, filters, penalties, logit bias and grammars decide what
is drawn, and change nothing here. So the numbers of two requests can be compared, re-scoring the text gives the same
ones, and a token that a bias or a grammar forced shows how unlikely it was. (The default of OpenAI's interface as vLLM
and llama.cpp serve it.) Never sees trees, drafts or requests.
"""

from __future__ import annotations

import numpy as np

from draftgraph.kernels.likeliest import likeliest
from draftgraph.types import FloatArray, TokenLogprobs


def token_logprobs(logits: FloatArray, token: int, count: int) -> TokenLogprobs:
    """Returns the log-probability of `token` and of the `count` likeliest tokens.

    Args:
        logits: [vocabulary] raw logits, finite where a token can be drawn. Not modified.
    """
    below = logits.astype(np.float64) - float(logits.max())
    logprobs = below - np.log(np.exp(below).sum())
    top = likeliest(logits[np.newaxis], count)[0].tolist() if count else []
    return TokenLogprobs(token, float(logprobs[token]), tuple((other, float(logprobs[other])) for other in top))
