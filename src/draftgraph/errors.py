"""Typed errors in three parts: what was given, what is allowed, what to do.

A leaf: imports nothing of ours. Every error a user can cause is a subclass of `DraftGraphError`; the command line
prints its three parts and exits with code 2, and nothing a user typed or owned is lost. A broken invariant is an
`assert`.
"""

from __future__ import annotations


class DraftGraphError(Exception):
    """Base of all errors that input can cause.

    Args:
        given: what was given, with the value itself.
        allowed: what would have been accepted.
        remedy: what to do next.
    """

    def __init__(self, given: str, allowed: str, remedy: str) -> None:
        super().__init__(given, allowed, remedy)
        self.given = given
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.given}\n  allowed: {self.allowed}\n  do this: {self.remedy}"


class ParameterError(DraftGraphError):
    """An option or a request parameter is unknown, of the wrong type or out of range."""


class PromptError(DraftGraphError):
    """A prompt cannot be run: empty, too long for the context, or of an unknown form."""


class DataFileError(DraftGraphError):
    """A prompt or corpus file is missing or not in a supported form."""


class ModelNotFoundError(DraftGraphError):
    """A model argument names nothing that exists."""


class ModelFileError(DraftGraphError):
    """A model file is truncated, corrupt or contradicts itself."""


class UnsupportedModelError(DraftGraphError):
    """A model file is sound, but its architecture, types or settings are not supported."""


class TokenizerError(DraftGraphError):
    """A tokenizer is missing, broken or of an unknown kind."""


class ChatTemplateError(DraftGraphError):
    """A chat template is missing, broken or too large, or it refused the chat."""


class VocabularyMismatchError(DraftGraphError):
    """A draft model's vocabulary is not the target's."""


class DrafterError(DraftGraphError):
    """A drafter of the user's own does not return what it must."""


class DownloadError(DraftGraphError):
    """A download failed or arrived with the wrong checksum; no partial file is left."""


class MissingPackageError(DraftGraphError):
    """An optional package is needed for what was asked."""


class CapacityError(DraftGraphError):
    """All slots or key-value blocks are in use."""


class ClosedError(DraftGraphError):
    """Something was used after it was closed."""
