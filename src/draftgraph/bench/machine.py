"""Where a number was measured: the machine and the source code.

In: nothing; it looks. Out: plain values for a published result.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from draftgraph.doctor import examine

_CODE = (
    "src",
    "csrc",
    "benchmarks/*.py",
    "benchmarks/under_load",
    "benchmarks/*.jsonl",
    "pyproject.toml",
    "CMakeLists.txt",
)


def machine() -> dict[str, Any]:
    """Returns the published description of this machine and what runs on it."""
    report = examine()
    return {
        "cpu": report.cpu,
        "cores": report.num_cores,
        "system": platform.system(),
        "python": report.versions["python"],
        "numpy": report.versions["numpy"],
        "draftgraph": report.versions["draftgraph"],
    }


def commit(file: Path = Path(__file__)) -> str | None:
    """Returns the commit of the checkout that `file` belongs to, as `git describe` names it, and "-dirty" where its
    code is another by now; None outside of one. Results and documents, which a measurement changes, are no code."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # a package installed into somebody else's checkout is not of it
        changed = git("status", "--porcelain", "--", *(f":/{place}" for place in _CODE))
        return git("describe", "--always", "--tags") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
