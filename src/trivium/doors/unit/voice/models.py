"""`SpeechModels`: what the names in setups of voice units stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.voice.sherpa_model import is_sherpa_folder
from trivium.doors.unit.voice.sound import RATE
from trivium.models.catalogue import catalogue

__all__ = ["KEYWORDS", "SPEAKER", "SpeechModel", "SpeechModels"]

KEYWORDS = "pocketsphinx"
SPEAKER = "espeak-ng"

# The original's models: devices name them, and mean the language that they are for.
_ORIGINALS = {
    "kws": {
        "sherpa-onnx-kws-zipformer-gigaspeech-3.3M-2024-01-01": (KEYWORDS, "en"),
        "sherpa-onnx-kws-zipformer-wenetspeech-3.3M-2024-01-01": (KEYWORDS, "zh"),
    },
    "asr": {
        "sherpa-ncnn-streaming-zipformer-20M-2023-02-17": ("whisper-tiny", "en"),
        "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23": ("whisper-tiny", "zh"),
    },
    "tts": {
        "single_speaker_english_fast": (SPEAKER, "en"),
        "single_speaker_fast": (SPEAKER, "zh"),
        "melotts-en-default": (SPEAKER, "en"),
        "melotts-en-us": (SPEAKER, "en"),
        "melotts-es-es": (SPEAKER, "es"),
        "melotts-ja-jp": (SPEAKER, "ja"),
        "melotts-zh-cn": (SPEAKER, "zh"),
        "melotts_zh-cn": (SPEAKER, "zh"),
    },
}


@dataclass(frozen=True, slots=True)
class SpeechModel:
    """`target` is an engine's name, a name of the catalogue, or a path of the configuration.

    `language` is the one that the name is for, two letters; None if it is for whatever the model knows.
    """

    name: str
    target: str
    language: str | None = None


class SpeechModels:
    """Names for kws, asr and tts: our own, the original's, and those of the configuration, which come first.

    A device cannot name a file: only what these lead to is loaded.
    """

    def __init__(self, configured: Mapping[str, str]) -> None:
        """`configured`: names, and what each stands for: a folder of kws or asr, a `.onnx` of tts, or one of our own names."""
        self._own = {
            "kws": {KEYWORDS: KEYWORDS},
            "asr": {entry.name: entry.name for entry in catalogue() if entry.kind == "asr"},
            "tts": {SPEAKER: SPEAKER},
        }
        own_kinds = {target: kind for kind, names in self._own.items() for target in names}
        for name, target in configured.items():
            self._own[own_kinds.get(target) or _kind(name, target)][name] = target

    def names(self, kind: str) -> list[str]:
        """What setups of kws, asr or tts may name, without the original's names."""
        return list(self._own[kind])

    def descriptors(self, kind: str, capabilities: list[str], inputs: list[str], outputs: list[str]) -> list[dict[str, Any]]:
        """The names of kws, asr or tts as the original's files describe models, with the fields that clients read."""
        return [
            {
                "mode": name,
                "type": kind,
                "homepage": "",
                "compile_flage": "",
                "pulsar_version": "",
                "capabilities": capabilities,
                "input_type": inputs,
                "output_type": outputs,
                "mode_param": {"cmm_size": _num_kib(target), "audio_rate": RATE},
                "mode_param_bak": {},
            }
            for name, target in self._own[kind].items()
        ]

    def find(self, kind: str, name: str) -> SpeechModel:
        """Raises `UnitError` MODEL for a name that stands for nothing."""
        target, language = _ORIGINALS[kind].get(name, (None, None))
        target = self._own[kind].get(name, target)
        if target is None:
            raise UnitError(Code.MODEL, f"There is no {kind} model {name!r:.80}; there are {', '.join(self.names(kind))}.")
        return SpeechModel(name, target, language)


def _kind(name: str, target: str) -> str:
    """The unit that a model of the configuration is for."""
    if target.endswith(".onnx"):
        return "tts"
    return "kws" if is_sherpa_folder(target) or name in _ORIGINALS["kws"] else "asr"


def _num_kib(target: str) -> int:
    """What a model of the catalogue takes; 0 for others."""
    return sum(entry.size for entry in catalogue() if entry.name == target) // 1024
