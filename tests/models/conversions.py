"""Writes the golden folders in other layouts: Paddle's, stacked experts, GGUF."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from trivium.models.safetensors import SafetensorsFolder

Arrays = dict[str, NDArray[Any]]

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
_GGUF_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_ARCHITECTURES = {"ernie4_5_moe": "ernie4_5-moe", "qwen3_moe": "qwen3moe", "mistral": "llama"}


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def read_arrays(folder: Path) -> Arrays:
    """Every tensor of a folder as float32."""
    source = SafetensorsFolder.open(folder)
    arrays = {}
    for name, tensor in source.tensors.items():
        data = np.array(tensor.data)
        if tensor.type.name == "BF16":
            values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = data.view({"F32": np.float32, "F16": np.float16}[tensor.type.name]).astype(np.float32)
        arrays[name] = values.reshape(tensor.shape)
    return arrays


def write_folder(folder: Path, config: dict[str, Any], arrays: Arrays) -> Path:
    """A folder with config.json and a float32 model.safetensors."""
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [offset, offset + 4 * array.size]}
        offset += 4 * array.size
    text = json.dumps(header).encode()
    blobs = [np.ascontiguousarray(array, np.float32).tobytes() for array in arrays.values()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def to_paddle(source: Path, folder: Path, *, fused: bool = True, prefix: str = "ernie.") -> Path:
    """An ERNIE folder in Paddle's layout: linear weights [in, out], by default with the fused names."""
    arrays = read_arrays(source)
    if fused:
        arrays = _fuse(arrays, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
        arrays = _fuse(arrays, ("gate_proj", "up_proj"), "up_gate_proj")
    paddle = {}
    for name, array in arrays.items():
        keep = array.ndim != 2 or "embed_tokens" in name or "e_score_correction_bias" in name
        paddle[name.replace("model.", prefix, 1)] = array if keep else np.ascontiguousarray(array.T)
    config = {key: value for key, value in read_config(source).items() if key not in ("model_type", "dtype")}
    return write_folder(folder, config, paddle)


def _fuse(arrays: Arrays, parts: tuple[str, ...], fused: str) -> Arrays:
    """Join the outputs of `parts`, wherever the first of them is."""
    joined = {}
    for name, array in arrays.items():
        if f".{parts[0]}." in name:
            group = [arrays[name.replace(parts[0], part)] for part in parts]
            joined[name.replace(parts[0], fused)] = np.concatenate(group)
        elif not any(f".{part}." in name for part in parts[1:]):
            joined[name] = array
    return joined


def stack_experts(source: Path, folder: Path) -> Path:
    """A folder whose experts are stacked as transformers 5 holds them in memory."""
    arrays = read_arrays(source)
    stacked = {name: array for name, array in arrays.items() if ".experts." not in name}
    for layer in {name.split(".experts.")[0] for name in arrays if ".experts." in name}:
        count = len({name for name in arrays if name.startswith(f"{layer}.experts.") and "down_proj" in name})
        down = [arrays[f"{layer}.experts.{e}.down_proj.weight"] for e in range(count)]
        gate_up = [
            np.concatenate([arrays[f"{layer}.experts.{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(count)
        ]
        stacked[f"{layer}.experts.down_proj"] = np.stack(down)
        stacked[f"{layer}.experts.gate_up_proj"] = np.stack(gate_up)
    return write_folder(folder, read_config(source), stacked)


def to_gguf(source: Path, path: Path, *, change: Callable[[gguf.GGUFWriter, str], None] = lambda writer, arch: None) -> Path:
    """A float32 GGUF file, as converters write it; `change` may add metadata or tensors before it is written."""
    config = read_config(source)
    arrays = read_arrays(source)
    architecture = _GGUF_ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    tensors: dict[str, Any] = {}
    for name, array in arrays.items():
        if name in _GGUF_GLOBAL:
            tensors[_GGUF_GLOBAL[name]] = array
            continue
        _, _, layer, rest = name.split(".", 3)
        if architecture == "llama" and ("q_proj" in rest or "k_proj" in rest):
            array = _neighbouring_pairs(array, config["num_attention_heads" if "q_proj" in rest else "num_key_value_heads"])
        if ".experts." in rest:
            _, _, expert, part, _ = rest.split(".")
            tensors.setdefault(f"blk.{layer}.ffn_{part.removesuffix('_proj')}_exps.weight", {})[int(expert)] = array
        elif rest.endswith("e_score_correction_bias"):
            tensors[f"blk.{layer}.exp_probs_b.bias"] = array.reshape(-1)
        else:
            base, _, kind = rest.rpartition(".")
            tensors[f"blk.{layer}.{_GGUF_NAMES[base]}.{kind}"] = array
    for name, value in tensors.items():
        array = np.stack([value[expert] for expert in sorted(value)]) if isinstance(value, dict) else value
        writer.add_tensor(name, np.ascontiguousarray(array))
    change(writer, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim", config["hidden_size"] // heads))
    writer.add_value_length(config.get("head_dim", config["hidden_size"] // heads))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if architecture == "qwen3moe":
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture == "ernie4_5-moe":
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])


def _neighbouring_pairs(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of q or k (or their bias) reordered so that rotated pairs are neighbours."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
