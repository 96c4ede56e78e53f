"""GGUF files: a memory-mapped `TensorSource` with its metadata.

In: a path to a file, or to one part of a split file. Out: metadata as plain Python values, tensors as float32 or as the
file's own blocks. The `gguf` package's own reader trusts every count (a giant one keeps it busy for ever) and needs
seconds for a large vocabulary, so only its type table and dequantisers are used. Knows nothing of families, tokenizers
or runners.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftgraph.errors import UnsupportedModelError
from draftgraph.models.gguf_part import GgufPart, GgufTensor, ggml_types
from draftgraph.types import FloatArray

_MAX_PARTS = 10_000
_CHUNK = 2**20  # values dequantised at a time, to bound temporary memory
_PART_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class GgufFile:
    """A GGUF model, all of its parts together. Per model; the file must not change while it is open.

    Raises:
        ModelNotFoundError: no such file.
        ModelFileError: the file is not GGUF, is cut short or contradicts itself, or a part is missing.
        UnsupportedModelError: big-endian files, unknown versions or tensor types.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = parts = _parse_parts(path)
        self.metadata: Mapping[str, Any] = parts[0].metadata
        self._tensors: dict[str, GgufTensor] = {}
        for part in parts:
            for name, tensor in part.tensors.items():
                if name in self._tensors:
                    part.refuse(f"tensor {name!r} is in two parts of the file", "each tensor once")
                self._tensors[name] = tensor
        total = self.metadata.get("split.tensors.count", len(self._tensors))
        if len(parts) > 1 and total != len(self._tensors):
            parts[0].refuse(f"{len(self._tensors)} tensors in {len(parts)} parts", f"{total} tensors, as declared")

    @property
    def files(self) -> Sequence[Path]:
        return [part.path for part in self._parts]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def type_name(self, name: str) -> str:
        """Returns the tensor's GGML type, such as "Q4_K"."""
        return ggml_types()[self._tensors[name].type_id][0]

    def blocks(self, name: str) -> npt.NDArray[np.uint8]:
        """Returns the tensor's bytes as the file has them, [rows, bytes of a row], a read-only view."""
        return self._tensors[name].data

    def forget(self, name: str) -> None:
        """Drops a metadata value that nobody needs any more: some are lists of a hundred thousand strings."""
        self._parts[0].metadata.pop(name, None)

    def drop_pages(self) -> None:
        """Gives back the memory of what was read; the tensors stay usable. For after the weights have been copied."""
        for part in self._parts:
            part.drop_pages()

    def load(self, name: str) -> FloatArray:
        """Returns a float32 copy. Raises UnsupportedModelError for types that are not numbers to compute with."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        if tensor.type_id == GGMLQuantizationType.F32:
            return tensor.data.view("<f4").astype(np.float32).reshape(tensor.shape)
        if tensor.type_id == GGMLQuantizationType.F64:
            with np.errstate(over="ignore"):
                return tensor.data.view("<f8").astype(np.float32).reshape(tensor.shape)
        kind = GGMLQuantizationType(tensor.type_id)
        values = np.empty((len(tensor.data), tensor.shape[-1]), np.float32)
        step = max(1, _CHUNK // tensor.shape[-1])
        try:
            with np.errstate(all="ignore"):
                for first in range(0, len(values), step):
                    values[first : first + step] = dequantize(tensor.data[first : first + step], kind)
        except (NotImplementedError, KeyError) as error:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} of type {kind.name}",
                "F32, F16, BF16 and the Q4, Q5, Q6, Q8 and K types",
                "use a file with another quantisation, such as Q4_K_M or Q8_0",
            ) from error
        return values.reshape(tensor.shape)


def _parse_parts(path: Path) -> list[GgufPart]:
    """Parses the file at `path`, and all its siblings where it is one part of a split file."""
    part = GgufPart(path)
    count = part.metadata.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= _MAX_PARTS:
        part.refuse(f"split.count={count!r}", f"a whole number up to {_MAX_PARTS}")
    if count <= 1:
        return [part]
    match = _PART_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        part.refuse(f"part of {count}, under the name {path.name!r}", f"a name ending in -00001-of-{count:05d}.gguf")
    siblings = [path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [sibling.name for sibling in siblings if not sibling.is_file()]
    if missing:
        shown = ", ".join(missing[:3])
        part.refuse(f"{len(missing)} of {count} parts are missing: {shown}", f"all {count} parts in one folder")
    parts = [part if sibling == path else GgufPart(sibling) for sibling in siblings]
    for number, each in enumerate(parts):
        found = each.metadata.get("split.no"), each.metadata.get("split.count")
        if found != (number, count):
            each.refuse(f"split.no={found[0]!r}, split.count={found[1]!r}", f"{number} and {count}, as the name says")
    return parts
