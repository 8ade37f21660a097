"""Make model files to measure with.

    python benchmarks/make_model.py random q4_k_m OUT.gguf
    python benchmarks/make_model.py random q8_0 --size 1.7b OUT.gguf
    python benchmarks/make_model.py requantize q8_0 OUT.gguf

`random` writes a file shaped like Qwen3-0.6B, or Qwen3-1.7B, whose weights are noise. Only its speed means something: what a
kernel does, and how long it takes, depends on shapes and formats and not on values. Blocks are drawn directly, in seconds, with
scales that give weights of a usual size and mean zero. The tokenizer is that of another file, filled up to the vocabulary's
size with unused tokens.

`requantize` expands every matrix of a file to float32 and stores it in another format; norms and all metadata stay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from peers import model_path

WEIGHT = 0.02  # standard deviation of the weights

Recipe = Callable[[str, int, int], Kind]  # tensor, layer, number of layers -> format


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; as they stand, those of Qwen3-0.6B."""

    hidden: int = 1024
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    inner: int = 3072
    vocab: int = 151936
    context: int = 40960

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of the matrices of a layer."""
        attended, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "attn_q": (attended, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, attended),
            "ffn_gate": (self.inner, self.hidden),
            "ffn_up": (self.inner, self.hidden),
            "ffn_down": (self.hidden, self.inner),
        }


SHAPES = {"0.6b": Shape(), "1.7b": Shape(hidden=2048, inner=6144)}


def uniform(matrix: Kind, embedding: Kind) -> Recipe:
    """One format for all matrices but the embedding, which is the output matrix too."""
    return lambda tensor, layer, layers: embedding if tensor == "token_embd" else matrix


def k_mix(tensor: str, layer: int, layers: int) -> Kind:
    """Q4_K, with Q6_K where llama.cpp's Q4_K_M has it: the embedding, and half of the layers' values and second halves."""
    eighth = layers // 8
    careful = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    if tensor == "token_embd" or (careful and tensor in ("attn_v", "ffn_down")):
        return Kind.Q6_K
    return Kind.Q4_K


RECIPES: dict[str, Recipe] = {
    "q4_0": uniform(Kind.Q4_0, Kind.Q6_K),
    "q4_1": uniform(Kind.Q4_1, Kind.Q6_K),
    "q8_0": uniform(Kind.Q8_0, Kind.Q8_0),
    "q4_k_m": k_mix,
}
FILE_TYPES = {
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_k_m": gguf.LlamaFileType.MOSTLY_Q4_K_M,
}
REQUANTIZED = {"q4_0": Kind.Q4_0, "q4_1": Kind.Q4_1, "q8_0": Kind.Q8_0, "f16": Kind.F16}


def main() -> None:
    options = read_options()
    if options.command == "random":
        write_random(options.output, options.format, SHAPES[options.size], model_path(options.tokenizer))
    else:
        requantize(options.output, options.format, model_path(options.source))
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.1f} MB")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    random = commands.add_parser("random", help="weights of noise, shaped like a Qwen3")
    random.add_argument("format", choices=RECIPES)
    random.add_argument("--size", choices=SHAPES, default="0.6b", help="parameters (default: 0.6b)")
    random.add_argument("--tokenizer", help="GGUF file whose tokenizer is taken (default: the catalogue's smollm2)")
    again = commands.add_parser("requantize", help="another format of the same model")
    again.add_argument("format", choices=REQUANTIZED)
    again.add_argument("--source", help="GGUF file (default: the catalogue's smollm2)")
    for command in (random, again):
        command.add_argument("output", type=Path)
    return parser.parse_args()


def random_blocks(kind: Kind, rows: int, columns: int, numbers: np.random.Generator) -> NDArray[np.uint8]:
    """A matrix of noise in a format: its bytes, by row. The weights have mean 0 and a standard deviation of `WEIGHT`."""
    width, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rows * columns // width
    raw = numbers.integers(0, 256, (blocks, size), np.uint8)
    # Half of the scales are negative: the integers of some formats have a mean that is not 0.
    signs = np.where(numbers.integers(0, 2, blocks), 1.0, -1.0)
    if kind is Kind.Q8_0:
        _store(raw, 0, signs * WEIGHT / 73.9)
    elif kind is Kind.Q4_0:
        _store(raw, 0, signs * WEIGHT / 4.61)
    elif kind is Kind.Q4_1:
        _store(raw, 0, signs * WEIGHT / 4.61)
        _store(raw, 2, signs * WEIGHT / 4.61 * -7.5)
    elif kind is Kind.Q4_K:
        # Eight 6-bit scales and minima: 33 for all of them. A scale s in every field is this pattern of bits in 12 bytes.
        six = 33
        raw[:, 4:12], raw[:, 12:16] = six | (six >> 4 << 6), (six & 15) * 17
        _store(raw, 0, signs * WEIGHT / (4.61 * six))
        _store(raw, 2, signs * WEIGHT / (4.61 * six) * 7.5)
    elif kind is Kind.Q6_K:
        raw[:, 192:208] = numbers.choice(np.array([-12, 12], np.int8), (blocks, 16)).view(np.uint8)
        _store(raw, 208, signs * WEIGHT / (12 * 18.5))
    else:
        raise ValueError(f"no random blocks of {kind.name}")
    return raw.reshape(rows, -1)


def _store(raw: NDArray[np.uint8], offset: int, values: NDArray[np.float64]) -> None:
    """Write a float16 into every block."""
    raw[:, offset : offset + 2] = values.astype(np.float16)[:, None].view(np.uint8)


def write_random(path: Path, name: str, shape: Shape, tokenizer: str) -> None:
    """A model of noise. `name` is one of `RECIPES`, `tokenizer` a GGUF file with at most `shape.vocab` tokens."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name(f"Random {shape.hidden}x{shape.layers}")
    writer.add_file_type(FILE_TYPES[name])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab)
    _add_tokenizer(writer, gguf.GGUFReader(tokenizer), shape.vocab)
    numbers = np.random.default_rng(0)
    recipe = RECIPES[name]

    def add(tensor: str, rows: int, columns: int, kind: Kind) -> None:
        writer.add_tensor(f"{tensor}.weight", random_blocks(kind, rows, columns, numbers), raw_dtype=kind)

    def add_norm(tensor: str, size: int) -> None:
        writer.add_tensor(f"{tensor}.weight", np.ones(size, np.float32))

    add("token_embd", shape.vocab, shape.hidden, recipe("token_embd", 0, shape.layers))
    for layer in range(shape.layers):
        for tensor, (rows, columns) in shape.matrices().items():
            add(f"blk.{layer}.{tensor}", rows, columns, recipe(tensor, layer, shape.layers))
        for norm, size in (
            ("attn_norm", shape.hidden),
            ("ffn_norm", shape.hidden),
            ("attn_q_norm", shape.head_dim),
            ("attn_k_norm", shape.head_dim),
        ):
            add_norm(f"blk.{layer}.{norm}", size)
    add_norm("output_norm", shape.hidden)
    finish(writer)


def _add_tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader, vocab: int) -> None:
    """The tokenizer of `source`, with unused tokens up to `vocab`."""
    tokens: list[str] = source.fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = source.fields["tokenizer.ggml.token_type"].contents()
    if len(tokens) > vocab:
        raise SystemExit(f"the tokenizer has {len(tokens)} tokens, more than {vocab}")
    missing = range(len(tokens), vocab)
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in missing])
    writer.add_token_types(kinds + [int(gguf.TokenType.UNUSED) for _ in missing])
    for key, field in source.fields.items():
        if key.startswith("tokenizer.") and key not in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            _add_field(writer, key, field)


def requantize(path: Path, name: str, source: str) -> None:
    """Another format of the model `source`; `name` is one of `REQUANTIZED`."""
    reader = gguf.GGUFReader(source)
    kind = REQUANTIZED[name]
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            _add_field(writer, key, field)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{name.upper()}"])
    for tensor in reader.tensors:
        if tensor.tensor_type in (Kind.F32, Kind.F16) and len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def _add_field(writer: gguf.GGUFWriter, key: str, field: Any) -> None:
    is_list = field.types[0] == gguf.GGUFValueType.ARRAY
    writer.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1] if is_list else None)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything to the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
