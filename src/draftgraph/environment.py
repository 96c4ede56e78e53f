"""What this machine is, and everything that environment variables decide: where files are kept, whether to download.

A leaf: imports nothing of ours. The one file that reads the environment; what it says is read at each call, never at
import. Settings of the engine are not environment variables: they are in `config.py`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CACHE = "DRAFTGRAPH_CACHE"
OFFLINE = "DRAFTGRAPH_OFFLINE"
HUB_ENDPOINT = "HF_ENDPOINT"
KERNELS = "DRAFTGRAPH_KERNELS"


def cache_dir() -> Path:
    """Returns the folder for models and measurements: $DRAFTGRAPH_CACHE, or `draftgraph` in the user's cache folder.

    The folder need not exist yet.
    """
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    return _user_cache_dir() / "draftgraph"


def is_offline() -> bool:
    """Returns whether downloads are refused: DRAFTGRAPH_OFFLINE is set to anything but 0, false, no or nothing."""
    return os.environ.get(OFFLINE, "").strip().lower() not in ("", "0", "false", "no")


def hub_endpoint() -> str | None:
    """Returns the address of the Hub to use, $HF_ENDPOINT, or None for the public one."""
    return os.environ.get(HUB_ENDPOINT) or None


def kernel_level() -> str:
    """Returns the level that the native kernels are held to, $DRAFTGRAPH_KERNELS; "" for the fastest there is."""
    return os.environ.get(KERNELS, "")


def num_cores() -> int:
    """Returns how many physical cores this process may use; logical ones where the system does not tell them apart."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    """Returns the logical CPUs that share a core with `cpu`, as Linux writes them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of this process's environment with `changes`, to start a program with."""
    return {**os.environ, **changes}


def _user_cache_dir() -> Path:
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return Path(xdg) if os.path.isabs(xdg) else home / ".cache"


def cpuinfo() -> list[tuple[str, str]]:
    """Returns the fields of /proc/cpuinfo in order, or nothing where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def cpu_name() -> str:
    """Returns the processor's name as the system tells it."""
    for key, value in cpuinfo():
        if key in ("model name", "Hardware") and value:
            return value
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return platform.processor() or platform.machine() or "unknown"
