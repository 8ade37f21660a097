"""Names of speech models."""

from __future__ import annotations

import pytest

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.voice.models import SpeechModel, SpeechModels


def test_our_own_names():
    models = SpeechModels({})
    assert models.names("kws") == ["pocketsphinx"]
    assert models.names("asr") == ["whisper-tiny"]
    assert models.names("tts") == ["espeak-ng"]
    assert models.find("asr", "whisper-tiny") == SpeechModel("whisper-tiny", "whisper-tiny")


@pytest.mark.parametrize(
    ("kind", "name", "target", "language"),
    [
        ("kws", "sherpa-onnx-kws-zipformer-gigaspeech-3.3M-2024-01-01", "pocketsphinx", "en"),
        ("kws", "sherpa-onnx-kws-zipformer-wenetspeech-3.3M-2024-01-01", "pocketsphinx", "zh"),
        ("asr", "sherpa-ncnn-streaming-zipformer-20M-2023-02-17", "whisper-tiny", "en"),
        ("asr", "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23", "whisper-tiny", "zh"),
        ("tts", "single_speaker_english_fast", "espeak-ng", "en"),
        ("tts", "melotts_zh-cn", "espeak-ng", "zh"),
        ("tts", "melotts-ja-jp", "espeak-ng", "ja"),
    ],
)
def test_the_names_that_devices_send(kind, name, target, language):
    assert SpeechModels({}).find(kind, name) == SpeechModel(name, target, language)


def test_names_of_the_configuration_come_first_and_keep_their_language():
    models = SpeechModels(
        {
            "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23": "/models/whisper-small",
            "joe": "/voices/joe.onnx",
            "robot": "espeak-ng",
            "word": "pocketsphinx",
            "ear": "whisper-tiny",
        }
    )
    assert models.find("asr", "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23").target == "/models/whisper-small"
    assert models.find("asr", "sherpa-ncnn-streaming-zipformer-zh-14M-2023-02-23").language == "zh"
    assert models.find("tts", "joe") == SpeechModel("joe", "/voices/joe.onnx")
    assert models.names("tts") == ["espeak-ng", "joe", "robot"]
    assert models.names("kws") == ["pocketsphinx", "word"]
    assert models.find("asr", "ear").target == "whisper-tiny"


def test_folders_of_keyword_models(tmp_path):
    (tmp_path / "tokens.txt").touch()
    original = "sherpa-onnx-kws-zipformer-wenetspeech-3.3M-2024-01-01"
    models = SpeechModels({"mine": str(tmp_path), original: "/not/there", "ear": "/models/whisper-small"})
    assert models.names("kws") == ["pocketsphinx", "mine", original]
    assert models.find("kws", "mine") == SpeechModel("mine", str(tmp_path))
    assert models.find("kws", original) == SpeechModel(original, "/not/there", "zh")
    assert models.names("asr") == ["whisper-tiny", "ear"]


@pytest.mark.parametrize("name", ["", "nothing", "/etc/passwd", "../x", "whisper-base", "hf:owner/name"])
@pytest.mark.parametrize("kind", ["kws", "asr", "tts"])
def test_devices_cannot_name_anything_else(kind, name):
    with pytest.raises(UnitError, match=f"There is no {kind} model") as caught:
        SpeechModels({}).find(kind, name)
    assert caught.value.code == Code.MODEL
