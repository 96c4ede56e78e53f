"""The compiled core, `draftgraph._native`; None where it was installed without one, as `draftgraph doctor` says."""

from __future__ import annotations

try:
    from draftgraph import _native as core
except ImportError:
    core = None  # type: ignore[assignment]

__all__ = ["core"]
