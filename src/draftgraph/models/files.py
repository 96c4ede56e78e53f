"""Opening model files: memory maps, JSON objects, and words for files that are something else.

In: a path. Out: bytes or a JSON object, or a typed error that says what the file seems to be. A leaf of `models`: knows
no format beyond its first bytes.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

from draftgraph.errors import ModelFileError, ModelNotFoundError

_MAX_JSON = 2**26


def map_file(path: Path) -> mmap.mmap | bytes:
    """Maps a regular file for reading; an empty file is b"".

    Raises:
        ModelNotFoundError: no such file.
        ModelFileError: not a regular file, or not readable.
    """
    try:
        if path.exists() and not path.is_file():
            raise ModelFileError(f"{path}: not a regular file", "a model file", "pass the file itself")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFoundError(f"{path}: no such file", "an existing file", "check the path") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}", "a readable file", "check the path and its permissions") from error


def drop_pages(mapped: mmap.mmap | bytes) -> None:
    """Gives back the memory of the pages that were read, where the system can; reading them again brings them back."""
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def describe_head(head: bytes) -> str:
    """Says in words what a file that is no model seems to be, from its first bytes."""
    if not head:
        return "the file is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-LFS pointer, the model itself was never downloaded"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "it is a web page, perhaps of a failed download"
    if head[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        return "it is a file of the older GGML format"
    if head.startswith(b"GGUF"):
        return "it is a GGUF file"
    if head.startswith(b"PK\x03\x04"):
        return "it is a zip archive, perhaps a PyTorch checkpoint"
    if not any(head):
        return "it begins with zeros, perhaps a download that never ended"
    return f"it begins with {head[:8]!r}"


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
        ModelNotFoundError: no such file.
        ModelFileError: not a JSON object, or larger than any real one.
    """
    data = map_file(path)
    if len(data) > _MAX_JSON:
        raise ModelFileError(f"{path}: {len(data)} bytes of JSON", f"at most {_MAX_JSON}", "check the file")
    try:
        value = json.loads(data[:])
    except (ValueError, RecursionError) as error:
        given = f"{path}: no JSON ({error or 'nested too deeply'}); {describe_head(data[:64])}"
        raise ModelFileError(given, "a JSON object", "download the file again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: a JSON {type(value).__name__}", "a JSON object", "download the file again")
    return value
