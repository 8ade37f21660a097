"""The C++ core (`src/trivium/native/`). Arrays are C-contiguous numpy arrays of exactly the stated dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
UInt8 = NDArray[np.uint8]
UInt32 = NDArray[np.uint32]

def available_instruction_sets() -> list[str]:
    """Kernels this CPU can run, best first: of "avx512", "avx2", "neon_dot", "neon", "portable"."""

def bytes_by_bytes() -> bool:
    """Whether 6- and 8-bit weights can take int8 activations with the kernels in use."""

def instruction_set() -> str:
    """The kernels in use: the best available, or what TRIVIUM_ISA names."""

def num_threads() -> int: ...
def set_num_threads(count: int) -> None:
    """Size of the process-wide pool, the calling thread included."""

def dequantize(type: int, data: UInt8, count: int) -> Float32:
    """`count` elements of a tensor of GGUF element type `type`, as float32. ValueError if `data` is too short."""

class Matrix:
    """Packed weights of shape [rows, cols]; y = W x."""

    def __init__(self, rows: int, cols: int, sources: Sequence[tuple[int, UInt8]], mode: str) -> None:
        """Stack `sources` (element type, bytes of whole rows). `mode`: "auto" keeps the file's precision, "float32"
        expands it, "wint8"/"wint4" quantise 16- and 32-bit sources."""
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def family(self) -> str: ...
    def row(self, index: int) -> Float32:
        """One row, dequantised: float32 [cols]."""
    def matmul(self, x: Float32, activation: str) -> Float32:
        """x [m, cols] -> [m, rows]; `activation` "auto", "int8", "int16" or "float32" (tests)."""

class Sampler:
    """How one sequence chooses its next token, with the history that penalties and random numbers depend on."""

    def __init__(
        self,
        *,
        vocab_size: int,
        prompt: Int32,
        seed: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        penalty_window: int = 0,
        min_tokens: int = 0,
        suppressed: Int32 = ...,
        bad_words: Sequence[Sequence[int]] = (),
        bias_ids: Int32 = ...,
        bias_values: Float32 = ...,
        logprobs: int = -2,
        logprobs_mode: str = "raw_logprobs",
    ) -> None:
        """`penalty_window` 0: everything. `suppressed` tokens are forbidden until `min_tokens` were generated.
        `logprobs`: alternatives to report; -1 all; -2: report nothing."""
    @property
    def num_output(self) -> int: ...
    def force(self, token: int) -> None:
        """The next sampled token will be this one (its logprobs are still reported)."""
    def push(self, token: int) -> None:
        """Append a token to the output history without sampling."""
    def truncate(self, num_output: int) -> None:
        """Forget all but the first `num_output` output tokens."""
    def sample(self, logits: Float32, mask: UInt32 | None = None) -> tuple[int, LogprobRow | None]:
        """Choose from logits [vocab_size] and append (tests). -1: NaN logits or nothing allowed."""

# (logprob, rank, ids of the alternatives, their logprobs)
LogprobRow = tuple[float, int, Int32, Float32]

class StepResult:
    tokens: list[list[int]]
    """Per sequence: the accepted tokens; empty without a sampler; [-1], with or without one, if its numbers were not finite
    or its mask allowed nothing."""
    logprobs: list[list[LogprobRow] | None]
    """Per sequence: one row per accepted token, None if not asked for."""
    prompt_logprobs: list[list[LogprobRow] | None]
    """Per sequence: one row per position of this step whose next prompt token was given, None if not asked for."""

class Model:
    """Weights of one decoder, its KV cache and its step."""

    def __init__(self, spec: dict[str, Any]) -> None: ...
    def set_matrix(self, name: str, matrix: Matrix) -> None: ...
    def set_vector(self, name: str, values: Float32) -> None: ...
    def finish(self) -> None:
        """Check that every weight is there with the right shape; ValueError names the first that is not."""
    @property
    def weight_bytes(self) -> int: ...
    def block_bytes(self, block_size: int, kv_dtype: str) -> int:
        """Bytes of one KV block over all layers; `kv_dtype` "int16", "int8", "float16" or "float32"."""
    def allocate_cache(self, num_blocks: int, block_size: int, kv_dtype: str) -> None: ...
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source, destination), in order."""
    def step(
        self,
        token_ids: Int32,
        positions: Int32,
        query_starts: Int32,
        context_lens: Int32,
        block_tables: Int32,
        samplers: Sequence[Sampler | None],
        num_drafts: Int32 | None = None,
        masks: UInt32 | None = None,
        mask_rows: Int32 | None = None,
        prompt_logprobs: Sequence[tuple[int, int, Int32]] = (),
        embeddings: Float32 | None = None,
        embedding_rows: Int32 | None = None,
        layer_additions: Sequence[tuple[int, Int32, Float32]] = (),
    ) -> StepResult:
        """Compute T rows of S sequences in one call, the GIL released.

        token_ids [T]; positions [T] or [3, T]; query_starts [S+1] bounds each sequence's rows; context_lens [S]: tokens of the
        sequence whose KV exists after the step, the new ones included; block_tables [S, width], unused entries ignored.
        A sequence with a sampler gets logits for its last row, or for its last 1 + num_drafts[s] rows, whose last
        num_drafts[s] inputs are drafts: rows are sampled in order while each sampled token equals the next draft.
        masks [R, ceil(vocab/32)]: allowed tokens as bits; mask_rows[s] is the first mask of sequence s (-1: none), one per
        logits row. prompt_logprobs: (sequence, alternatives, next token of each of its rows (-1: no row wanted)).
        embeddings [E, hidden] replace the token of rows embedding_rows [E]. layer_additions: (layer, rows, values [n, hidden]).
        ValueError for inconsistent arrays; nothing is computed then.
        """
    def logits(self, token_ids: Int32) -> Float32:
        """Logits [n, vocab] of one sequence alone, in the first blocks of the cache (tests, perplexity)."""
