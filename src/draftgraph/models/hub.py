"""A model from the Hub, which `huggingface_hub` talks to and whose cache it keeps.

In: a Hub name `owner/name[:file]`. Out: the path of a GGUF file or of a safetensors folder in the Hub's cache. The only
module that imports that package. It must never know the catalogue (its names come as words for error messages),
paths of users, or what is inside a model.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from draftgraph.environment import OFFLINE, hub_endpoint, is_offline
from draftgraph.errors import DownloadError, MissingPackageError, ModelNotFoundError

# What a Hub name without a file means, best first: the types that are read exactly as the file means them.
GGUF_PREFERENCE = (
    "Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "F16", "F32",
)  # fmt: skip
FOLDER_PATTERNS = (
    "config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "generation_config.json",
    "chat_template*", "additional_chat_templates/*.jinja",
)  # fmt: skip
HUB_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_NAME = re.compile(rf"(?P<repo>{HUB_PART}/{HUB_PART})(?::(?P<file>[^:\\]+))?", re.ASCII)


def find_on_hub(model: str, *, ask_hub: bool, catalogue: Collection[str]) -> Path | None:
    """Returns the file or folder that the Hub name `model` means, or None where `model` is no Hub name.

    Args:
        ask_hub: whether the Hub is asked even if a copy is here. It never is while downloads are refused.
        catalogue: the names that need no Hub, for what is said to the user.

    Raises:
        ModelNotFoundError: the Hub has no such model, or none that can be read.
        DownloadError: it cannot be fetched.
        MissingPackageError: `huggingface_hub` is not installed.
    """
    name = HUB_NAME.fullmatch(model)
    if name is None:
        return None
    repo, file = name["repo"], name["file"]
    if file is not None and (not file.lower().endswith(".gguf") or ".." in file.split("/")):
        raise ModelNotFoundError(
            f"{model} names no .gguf file", f"{repo}:FILE.gguf, or {repo} alone", "name another file, or none"
        )
    try:
        from huggingface_hub import HfApi, utils
    except ImportError as error:
        raise MissingPackageError(
            f"{model} is a Hub name, and the package huggingface_hub is not installed",
            f"a catalogue name ({', '.join(catalogue)}) or a path; Hub names with huggingface_hub",
            "pip install 'draftgraph[hub]'",
        ) from error
    api = HfApi(endpoint=hub_endpoint())
    if not ask_hub or is_offline():
        here = _file_here(api, repo, file) if file else _repo_here(api, repo)
        if here is not None:
            return here
    if is_offline():
        raise DownloadError(
            f"{model} is not in the Hub's cache, and {OFFLINE} is set",
            "models that were pulled before",
            f"unset {OFFLINE}",
        )
    try:
        return _fetch(api, repo, file)
    except (ModelNotFoundError, DownloadError):
        raise
    except Exception as error:  # NOTE: the library's errors come from whichever HTTP package its version uses.
        raise _error(utils, model, error, catalogue) from error


def _fetch(api: Any, repo: str, file: str | None) -> Path:
    if file is None:
        files = api.list_repo_files(repo)
        if any(name.lower().endswith(".gguf") for name in files):
            file = choose_gguf(repo, files)
    if file is not None:
        return _file(api, repo, file)
    folder = _folder(api, repo, FOLDER_PATTERNS)
    if not _is_whole_folder(folder):
        raise ModelNotFoundError(
            f"the Hub's {repo} holds neither a .gguf file nor a config.json with safetensors",
            "a repository of GGUF files, or of safetensors",
            "look at the files of the repository, or choose another one",
        )
    return folder


def choose_gguf(repo: str, files: Sequence[str]) -> str:
    """Returns the GGUF file of `files` that the Hub name `repo` alone means; of a split model, its first part.

    Raises:
        ModelNotFoundError: there are several, and none is of a preferred type.
    """
    models = [name for name in files if name.lower().endswith(".gguf") and "mmproj" not in name.lower()]
    models = sorted({_parts(name)[0] for name in models}, key=lambda name: (len(name), name))
    for kind in GGUF_PREFERENCE:
        for name in models:
            if re.search(rf"(?<![A-Z0-9]){kind}(?![A-Z0-9_])", name, re.IGNORECASE):
                return name
    if len(models) == 1:
        return models[0]
    raise ModelNotFoundError(
        f"{repo} does not say which of its GGUF files to use",
        ", ".join(f"{repo}:{name}" for name in models[:10]) or "a repository with a GGUF file of a language model",
        f"name the file: {repo}:FILE.gguf",
    )


def _parts(file: str) -> list[str]:
    """Returns the files of the model that `file` is a part of, in order; most models are one file."""
    split = re.fullmatch(r"(.*-)\d{5}-of-(\d{5})(\.gguf)", file, re.IGNORECASE)
    if split is None or int(split[2]) == 0:
        return [file]
    stem, count, suffix = split.groups()
    return [f"{stem}{number:05}-of-{count}{suffix}" for number in range(1, int(count) + 1)]


def _file(api: Any, repo: str, file: str, **options: bool) -> Path:
    """Returns the path of `file`, after all parts of its model are here."""
    paths = {part: api.hf_hub_download(repo, part, **options) for part in _parts(file)}
    return Path(paths[file])


def _file_here(api: Any, repo: str, file: str) -> Path | None:
    try:
        return _file(api, repo, file, local_files_only=True)
    except (OSError, ValueError):
        return None


def _repo_here(api: Any, repo: str) -> Path | None:
    try:
        folder = _folder(api, repo, (), local_files_only=True)  # no pattern: whatever of it is here
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]
        if files:
            return _file_here(api, repo, choose_gguf(repo, files))
        folder = _folder(api, repo, FOLDER_PATTERNS, local_files_only=True)
    except (OSError, ValueError, ModelNotFoundError):
        return None
    return folder if _is_whole_folder(folder) else None


def _folder(api: Any, repo: str, patterns: Sequence[str], **options: bool) -> Path:
    return Path(api.snapshot_download(repo, allow_patterns=list(patterns), **options))


def _is_whole_folder(folder: Path) -> bool:
    """Returns whether a safetensors folder has its config and every file of weights that its index names."""
    weights: set[str] = {path.name for path in folder.glob("*.safetensors")}
    wanted: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            wanted.update(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
    return (folder / "config.json").is_file() and bool(weights) and wanted <= weights


def _error(hub: Any, model: str, error: Exception, catalogue: Collection[str]) -> ModelNotFoundError | DownloadError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, hub.GatedRepoError):
        return DownloadError(
            f"{model} is gated on the Hub: {reason}",
            "a repository that your account may read",
            "accept its terms on its page, then log in with `hf auth login`",
        )
    missing = isinstance(error, (hub.RepositoryNotFoundError, hub.EntryNotFoundError, hub.HFValidationError))
    if missing and not isinstance(error, hub.LocalEntryNotFoundError):
        return ModelNotFoundError(
            f"the Hub has no {model}: {reason}",
            f"an existing repository or file; or a catalogue name ({', '.join(catalogue)}), or a path",
            "check the spelling; for a private repository log in with `hf auth login`",
        )
    return DownloadError(
        f"{model} could not be fetched from the Hub: {reason}",
        "a Hub that can be reached, and room in its cache",
        "check the network, the proxy and the disk, and try again; or give the path of a file",
    )
