"""The C++ core of DraftGraph. Absent where no compiler was found at installation: `draftgraph doctor` says so."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float64]

class BadMatrixError(ValueError):
    """Shapes and data of a model's tensors disagree."""

class BadLevelError(ValueError):
    """A kernel level that does not exist, or that this CPU cannot run."""

def cpu_features() -> list[str]:
    """Returns the names of the vector extensions that this CPU and its operating system offer."""

def compiler() -> str:
    """Returns the compiler that built this extension, with its version."""

def kernel_levels() -> list[str]:
    """Returns the names of the kernel levels that this CPU can run, fastest first."""

def likeliest(rows: Floats, ids: Ints) -> None:
    """Fills ids [rows, k] with the ids of each row's k largest values, largest first, the lower id first on a tie."""

def contenders(scores: Scores, key: int, margin: float, ids: Ints) -> int:
    """Fills the front of `ids` [n] with every id whose score + noise may lie within `margin` of the largest, rising.

    Perhaps more, never fewer. Returns how many; 0 where the scores hold +inf, or nothing but -inf.
    """

def release_memory() -> None: ...
def multiply_adds(level: str, rounds: int) -> int:
    """Does `rounds` times 1024 multiply-adds of bytes in registers, by a kernel level; the result means nothing."""

def exp_sum(x: Scores) -> float:
    """Returns the sum of exp(x) for x [n] <= 0, to 1e-9 of its value if one of them is 0."""

def read_strings(data: Bytes, at: int, count: int) -> tuple[list[str], int] | None:
    """Returns the `count` strings of a GGUF file that begin at byte `at`, and where they end.

    None if one of them is not whole or not UTF-8.
    """

class Tensor:
    """A tensor of a model file, [outputs, inputs]; keeps `data`, its bytes, alive."""

    def __init__(self, type: int, outputs: int, inputs: int, data: Bytes) -> None: ...

class Layer:
    """One layer's tensors, norms and biases; all but `attn_norm` and `ffn_norm` may be empty."""

    def __init__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        attn_norm: Floats,
        ffn_norm: Floats,
        q_bias: Floats,
        k_bias: Floats,
        v_bias: Floats,
        q_norm: Floats,
        k_norm: Floats,
        post_attn_norm: Floats,
        post_ffn_norm: Floats,
        window: int,
        local_rope: bool,
    ) -> None: ...

class Shape:
    """The shape of a decoder and of its cache."""

    def __init__(
        self,
        *,
        num_layers: int,
        hidden: int,
        intermediate: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab: int,
        head: int,
        num_cells: int,
        num_positions: int,
        rope_dim: int,
        rope_interleaved: bool,
        coarse: bool,
        gelu: bool,
        norm_eps: float,
        embedding_scale: float,
        score_scale: float,
    ) -> None: ...

class Linear:
    """One matrix by itself, as the decoder treats it: for tests and measurements."""

    def __init__(self, tensor: Tensor, threads: int, level: str) -> None: ...
    def multiply(self, x: Floats, out: Floats) -> None:
        """Fills `out` [rows, outputs] with x [rows, inputs] times the tensor transposed."""

class Decoder:
    """A decoder over packed weights and a paged fp16 cache."""

    def __init__(
        self,
        *,
        shape: Shape,
        embedding: Tensor | None,
        head: Tensor,
        layers: list[Layer],
        final_norm: Floats,
        cos: Floats,
        sin: Floats,
        local_cos: Floats,
        local_sin: Floats,
        threads: int,
        level: str,
        packed: str,
    ) -> None:
        """Packs the weights; with a path in `packed`, reads them from there, or writes them there for the next time.

        Without an embedding, the head's rows are it.
        """
    def set_head_tile(self, tile: int, rows: Bytes) -> None:
        """Puts the rows of one tile, as the file has them, in the place of what the head's tile holds."""
    @property
    def level(self) -> str: ...
    @property
    def weight_bytes(self) -> int: ...
    def forward(self, tokens: Ints, positions: Ints, offsets: Ints, cells: Ints, wanted: Bytes, logits: Floats) -> None:
        """Computes rows and fills `logits` [wanted, head]; row r attends to cells[offsets[r]:offsets[r + 1]]."""

    def move_cells(self, source: Ints, target: Ints) -> None:
        """Copies cells in every layer, all read before any is written."""

    def read_cells(self, layer: int, cells: Ints, keys: Floats, values: Floats) -> None:
        """Fills `keys` and `values` [n, kv_heads, head_dim] from cells [n]."""
