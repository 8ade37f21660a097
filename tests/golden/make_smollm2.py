"""Makes golden/smollm2/expected.npz: what transformers computes in float32 on SmolLM2's dequantised weights.

    python tests/golden/make_smollm2.py

Windows of 512 tokens of tests/data/pride_and_prejudice.txt. Kept per position: the 32 most likely tokens with their
log-probabilities (float16) and the next token's log-probability: enough for perplexity, top-1 agreement and a close lower
bound of the KL divergence, in one megabyte instead of one gigabyte.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
TEXT = HERE.parent / "data" / "pride_and_prejudice.txt"
WINDOW = 512
WINDOWS = 16
KEPT = 32


def windows(path: Path) -> np.ndarray:
    """int32 [WINDOWS, WINDOW] token ids of the text."""
    from trivium.models.gguf import GGUFFile
    from trivium.models.tokenizer import Tokenizer

    file = GGUFFile.open(path)
    ids = Tokenizer.from_gguf(file.metadata).encode(TEXT.read_text())
    file.close()
    return np.array(ids[: WINDOWS * WINDOW], np.int32).reshape(WINDOWS, WINDOW)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise log-probabilities in float64."""
    z = logits.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def reference_logits(path: Path, tokens: np.ndarray):
    """Yields float32 logits [WINDOW, vocab] per window, from transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
    for row in tokens:
        with torch.no_grad():
            yield model(torch.tensor(row, dtype=torch.long)[None]).logits[0].numpy()


def main() -> None:
    from trivium.models.catalogue import resolve_model

    path = resolve_model("smollm2")
    tokens = windows(path)
    ids, values, following = [], [], []
    for row, logits in zip(tokens, reference_logits(path, tokens), strict=True):
        logprobs = log_softmax(logits)
        top = np.argsort(-logprobs, axis=1, kind="stable")[:, :KEPT]
        ids.append(top.astype(np.uint16))
        values.append(np.take_along_axis(logprobs, top, axis=1).astype(np.float16))
        following.append(logprobs[np.arange(WINDOW - 1), row[1:]].astype(np.float32))
    (HERE / "smollm2").mkdir(exist_ok=True)
    np.savez_compressed(
        HERE / "smollm2" / "expected.npz",
        tokens=tokens,
        top_ids=np.stack(ids),
        top_logprobs=np.stack(values),
        next_logprobs=np.stack(following),
    )


if __name__ == "__main__":
    main()
