"""Makes the golden tokenizers: `python tests/golden/make_tokenizers.py`. Needs `sentencepiece` (in the oracle extra).

Every kind of tokenizer is trained on a little text in the form in which its models publish it (a `tokenizers` pipeline, or a
SentencePiece model). Written are the same vocabulary as GGUF metadata, and the ids that the published form gives to the texts.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = Path(__file__).parent / "tokenizers"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dogs weren't amused; they've seen it 1234 times, in 2024 and 2025.",
    "def encode(text):\n    for word in text.split():\n        if word in vocab:\n            yield word\n\treturn None\n",
    "你好，世界！今天天气很好，我们去公园走走吧。今天是二〇二四年。世界很大，你好吗？",
    "I'll say it's 3.14159 or 10,000; you'd say we're wrong. HelloWorld helloWorld HTTPServer XMLParser ÄÖÜ äöü naïve café",
    "Emoji: 🎉🎉 👩‍👩‍👧 🇩🇪 and spaces   here    there\n\n\nend\r\n\r\n",
    "Привет, мир! Привет! مرحبا بالعالم ١٢٣ नमस्ते",
] * 4

TEXTS = [
    "Hello world",
    " The quick brown fox, weren't they've I'LL it'S",
    "def encode(text):\n\treturn text.split()  # 12345\n\n\n    x = 10,000\r\n",
    "你好，世界！今天是2024年。",
    "🎉🎉 👩‍👩‍👧 naïve café HTTPServer ÄÖÜ",
    "   spaces   and\t\ttabs   \n  \n   ",
    "1 22 333 4444 55555 3.14159 ١٢٣ ①②³",
    "Привет, мир! unseen: ѫ ꙮ 𝔘𝔫𝔦 \x00\x7f",
    "a//b/c http://x.y/z?q=1&r=2 ... !!! <|not_special|>",
    "<|im_start|>user\nhi <|im_end|>there<think>so</think> <|im_end|> <|im_",
    "e\u0301 cafe\u0301 \ufb01",
    "",
]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>|"]
ADDED = ["<think>", "</think>", "  indent"]

# Code points in hexadecimal: a ligature and some full-width punctuation, a tab and a line break become simpler characters.
NORMALIZATION_RULES = "FB01\t66 69\nFF01\t21\nFF0C\t2C\nFF1F\t3F\n9\t20\nA\t20\nD\t20\n65 301\tE9\n"

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def byte_level_kinds() -> dict[str, tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None, bool]]:
    """Per pre-tokenizer: its published form, its normaliser, and whether whole words are looked up before merging."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {
        "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False),
        "smollm": (pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]), None, False),
        "llama-bpe": (split(WORDS % "{1,3}"), None, True),
        "qwen2": (split(WORDS % ""), normalizers.NFC(), False),
        "tekken": (split(TEKKEN), None, True),
    }


def make_byte_level(name: str) -> dict[str, Any]:
    pre_tokenizer, normalizer, whole_words = byte_level_kinds()[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = whole_words
    for token in data["added_tokens"]:
        token["normalized"] = False
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [3 if token in SPECIAL else 4 if token in ADDED else 1 for token in tokens]
    return {
        "metadata": {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 2,
        },
        "cases": [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS],
    }


def make_sentencepiece(name: str, **options: Any) -> dict[str, Any]:
    """Trains NAME.model; the ids are SentencePiece's, so the texts hold no special tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines() if line]),
        model_writer=model,
        model_type="bpe",
        vocab_size=480 if options["byte_fallback"] else 300,
        character_coverage=0.98,
        control_symbols=["<|begin|>", "<|end|>"],
        minloglevel=2,
        **options,
    )
    (FOLDER / f"{name}.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    count = processor.vocab_size()
    kinds = [
        (processor.is_unknown, 2),
        (processor.is_control, 3),
        (processor.is_unused, 5),
        (processor.is_byte, 6),
        (lambda _: True, 1),
    ]
    return {
        "metadata": {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in range(count)],
            "tokenizer.ggml.scores": [processor.get_score(i) for i in range(count)],
            "tokenizer.ggml.token_type": [next(kind for test, kind in kinds if test(i)) for i in range(count)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": options.get("add_dummy_prefix", True),
        },
        "cases": [
            {"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))}
            for text in TEXTS
            if "<|im_" not in text and "\x00" not in text
        ],
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    made = {name: make_byte_level(name) for name in byte_level_kinds()}
    plain = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    made["llama"] = make_sentencepiece("llama", **plain)
    made["noprefix"] = make_sentencepiece("noprefix", add_dummy_prefix=False, **plain)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(NORMALIZATION_RULES)
        rules.flush()
        made["rules"] = make_sentencepiece("rules", byte_fallback=False, normalization_rule_tsv=rules.name)
    for name, content in made.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
