"""Makes tests/golden/architectures: a tiny random model per architecture and what transformers computes with it.

    python tests/golden/make_architectures.py            writes the folders and rope.json
    python tests/golden/make_architectures.py --check    computes everything again and compares

Needs torch and transformers (the `oracle` extra). Each folder has config.json, model.safetensors and expected.npz:
`prompt` int32 [40], `logits` float32 [40, vocab] of all its positions, `tokens` int32 [24], the greedy continuation,
and `max_model_len`, the context to load the model with (0: its own).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = Path(__file__).parent / "architectures"
PROMPT_LENGTH = 40
NUM_TOKENS = 24
# Both far above the error of float32 arithmetic, so that tokens can be compared exactly.
LEAST_MARGIN = 5e-3
LEAST_SPREAD = 1.0

_SIZES: dict[str, Any] = {
    "vocab_size": 299,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Case:
    """One model: transformers' config class by its prefix, what differs from `_SIZES`, and how it is saved."""

    prefix: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    max_model_len: int = 0


def _llama_with(seed: int, rope_parameters: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> Case:
    rope = {"rope_theta": 10_000.0, **rope_parameters}
    return Case("Llama", seed, {"tie_word_embeddings": True, "rope_parameters": rope}, dtype)


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES: dict[str, Case] = {
    "llama": Case("Llama", 1, {"num_hidden_layers": 3}),
    "llama-bias": Case(
        "Llama", 2, {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "tie_word_embeddings": True}, torch.float16
    ),
    "llama-linear": _llama_with(3, {"rope_type": "linear", "factor": 2.0}, torch.float32),
    # Longer than it was trained for: the frequencies are those of a forward of max_model_len tokens.
    "llama-dynamic": Case(
        "Llama",
        4,
        {
            "max_position_embeddings": 32,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
        },
        max_model_len=PROMPT_LENGTH + NUM_TOKENS,
    ),
    "llama-yarn": _llama_with(5, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    "llama-llama3": _llama_with(6, _LLAMA3),
    "mistral": Case("Mistral", 7, {"sliding_window": 16, "head_dim": 32, "hidden_size": 72}),
    "qwen2": Case(
        "Qwen2",
        8,
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            "intermediate_size": 88,
        },
    ),
    "qwen3": Case("Qwen3", 9, {"head_dim": 32, "hidden_size": 72}),
    "qwen3_moe": Case(
        "Qwen3Moe",
        10,
        {
            "num_hidden_layers": 3,
            "head_dim": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
        },
    ),
    "ernie4_5": Case("Ernie4_5", 11, {"head_dim": 32, "use_bias": True}),
    "ernie4_5_moe": Case(
        "Ernie4_5_Moe",
        12,
        {
            "num_hidden_layers": 3,
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 2,
            "tie_word_embeddings": False,
        },
    ),
}


def build(case: Case, seed: int) -> Any:
    """The case's model in float32, its weights random and rounded to the type it is saved in."""
    config = getattr(transformers, f"{case.prefix}Config")(**{**_SIZES, **case.options})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{case.prefix}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * _scale(name, parameter)
            if "norm" in name:
                values += 1.0
            parameter.copy_(values.to(case.dtype).float())
    return model


def _scale(name: str, parameter: torch.Tensor) -> float:
    """Standard deviation of a random weight: lively attention, routing and logits, bounded activations."""
    if "norm" in name or name.endswith("bias"):
        return 0.2
    if "embed_tokens" in name:
        return 0.5
    gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "gate.weight", "lm_head")) else 1.0
    return gain * float(parameter.shape[-1]) ** -0.5


def reference(model: Any, case: Case, seed: int) -> dict[str, np.ndarray]:
    """What expected.npz holds; `RuntimeError` if the model is too dull to tell right from wrong."""
    generator = torch.Generator().manual_seed(seed + 1000)
    tokens = torch.randint(3, model.config.vocab_size, (1, PROMPT_LENGTH), generator=generator)
    prompt = tokens[0].numpy().astype(np.int32)
    with torch.no_grad():
        if case.max_model_len:
            # Dynamic NTK keeps the frequencies of the longest forward so far.
            model(torch.zeros((1, case.max_model_len), dtype=torch.long), use_cache=False)
        logits = model(tokens, use_cache=False).logits[0].numpy().astype(np.float32)
        margins = []
        for _ in range(NUM_TOKENS):
            best = torch.topk(model(tokens, use_cache=False).logits[0, -1], 2)
            margins.append(float(best.values[0] - best.values[1]))
            tokens = torch.cat([tokens, best.indices[:1, None]], dim=1)
    if min(margins) < LEAST_MARGIN or logits.std() < LEAST_SPREAD:
        raise RuntimeError(f"seed {seed}: margin {min(margins):.4f}, spread {logits.std():.2f}; take another seed")
    return {
        "prompt": prompt,
        "logits": logits,
        "tokens": tokens[0, PROMPT_LENGTH:].numpy().astype(np.int32),
        "max_model_len": np.int32(case.max_model_len),
    }


def write(folder: Path, case: Case, seed: int) -> None:
    """Make one folder; errors as in `reference`."""
    model = build(case, seed)
    expected = reference(model, case, seed)
    with tempfile.TemporaryDirectory() as temporary:
        model.to(case.dtype).save_pretrained(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(Path(temporary) / name, folder / name)
    np.savez_compressed(folder / "expected.npz", **expected)


def rope_cases() -> dict[str, dict[str, Any]]:
    """Configurations for which rope.json records transformers' frequencies."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 4096}
    dynamic = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10_000.0}
    llama3 = {**_LLAMA3, "rope_theta": 500_000.0, "original_max_position_embeddings": 8192, "factor": 32.0}
    return {
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
        "dynamic at its length": {"rope_parameters": dynamic},
        "dynamic longer": {"rope_parameters": dynamic, "max_model_len": 50_000},
        "yarn": {"rope_parameters": yarn},
        "yarn with betas": {"rope_parameters": {**yarn, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.3}},
        "yarn with mscale": {"rope_parameters": {**yarn, "mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False}},
        "yarn partial": {"rope_parameters": {**yarn, "partial_rotary_factor": 0.5}},
        "llama3": {"rope_parameters": llama3},
    }


def rope_reference(case: dict[str, Any]) -> dict[str, Any]:
    """The case with `inv_freq` and `attention_factor` as transformers computes them, for a head size of 64."""
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=16_384,
        rope_parameters=dict(case["rope_parameters"]),
    )
    compute = ROPE_INIT_FUNCTIONS[case["rope_parameters"]["rope_type"]]
    inv_freq, attention_factor = compute(config, torch.device("cpu"), seq_len=case.get("max_model_len"))
    return {**case, "inv_freq": [float(value) for value in inv_freq], "attention_factor": float(attention_factor)}


def make(folder: Path) -> None:
    for name, case in CASES.items():
        print(f"{name} …", file=sys.stderr)
        write(folder / name, case, case.seed)
    references = {name: rope_reference(case) for name, case in rope_cases().items()}
    (folder / "rope.json").write_text(json.dumps(references, indent=1) + "\n")


def differences(made: Path, kept: Path) -> list[str]:
    """The files of `made` that `kept` lacks or holds otherwise; logits may differ as float32 arithmetic does."""
    found = []
    for path in sorted(made.rglob("*")):
        other = kept / path.relative_to(made)
        if path.is_file() and not (other.exists() and _same(path, other)):
            found.append(str(other))
    return found


def _same(path: Path, other: Path) -> bool:
    if path.name == "config.json":
        ours, theirs = json.loads(path.read_text()), json.loads(other.read_text())
        return {**ours, "transformers_version": None} == {**theirs, "transformers_version": None}
    if path.name == "expected.npz":
        with np.load(path) as ours, np.load(other) as theirs:
            return all(np.allclose(ours[key], theirs[key], rtol=0, atol=1e-4) for key in ours)
    if path.name == "rope.json":
        ours, theirs = json.loads(path.read_text()), json.loads(other.read_text())
        return ours.keys() == theirs.keys() and all(
            np.allclose(ours[key]["inv_freq"], theirs[key]["inv_freq"], rtol=1e-6, atol=0) for key in ours
        )
    return path.read_bytes() == other.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if not arguments.check:
        make(FOLDER)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
        found = differences(Path(temporary), FOLDER)
    for path in found:
        print(f"differs: {path}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
