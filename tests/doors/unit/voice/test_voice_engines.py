"""The real engines: pocketsphinx, faster-whisper, espeak-ng."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import numpy as np
import pytest
from voice_parts import silence, tone

from trivium.doors.unit.errors import UnitError
from trivium.doors.unit.voice.activity import Activity, webrtc_detector
from trivium.doors.unit.voice.hearing import EndRules, Heard, Hearing
from trivium.doors.unit.voice.models import SpeechModel
from trivium.doors.unit.voice.pronunciation import pronounce
from trivium.doors.unit.voice.recogniser import Recognisers
from trivium.doors.unit.voice.sound import read_wav
from trivium.doors.unit.voice.speaker import SpeakerThreads, make_speaker
from trivium.doors.unit.voice.spotter import PhraseError, Spotter

pytestmark = pytest.mark.voice

ROBOT = "en-us+klatt4"  # the voice that the recogniser of wake words, made for people, understands best
TALK = (
    "The quick brown fox jumps over the lazy dog. Please open the window and close the door, because the weather is very "
    "cold today. How are you? I am fine, thank you very much. It was the best of times, it was the worst of times."
)


def say(text, voice="en-us", speed=150):
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-b", "1", "--stdin", "--stdout"]
    wav = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
    return silence(0.6) + read_wav(wav).sound() + silence(0.9)


def noise(seconds, level):
    return (np.random.default_rng(1).standard_normal(int(16000 * seconds)) * level).astype("<i2").tobytes()


def hear(spotter, sound, size=3200):
    return [s for i in range(0, len(sound), size) for s in spotter.hear(sound[i : i + size])]


# Wake words


@pytest.mark.parametrize("phrase", ["hello machine", "mister robot", "open sesame"])
@pytest.mark.parametrize("speed", [140, 165])
def test_a_wake_word_is_heard_once_each_time(phrase, speed):
    spotter = Spotter([phrase])
    sound = say(phrase, ROBOT, speed)
    for _ in range(3):
        assert [spotted.phrase for spotted in hear(spotter, sound)] == [phrase]


def test_the_one_that_was_said_and_when():
    spotter = Spotter(["hello machine", "open sesame"])
    sound = silence(3) + say("open sesame", ROBOT) + silence(3) + say("hello machine", ROBOT)
    first, second = hear(spotter, sound)
    assert (first.phrase, second.phrase) == ("open sesame", "hello machine")
    assert 3.3 < first.start < 4.5
    assert second.start > first.start + 4


def test_other_speech_and_noise_wake_nobody():
    spotter = Spotter(["hello machine", "mister robot"])
    for sound in (say(TALK), say(TALK, ROBOT), say(TALK, "en-gb"), noise(10, 30), noise(5, 3000), tone(5), silence(10)):
        assert hear(spotter, sound) == []
    assert len(hear(spotter, say("hello machine", ROBOT))) == 1


def test_pieces_of_any_size():
    sound = say("hello machine", ROBOT)
    for size in (2, 320, 1000, len(sound)):
        assert len(hear(Spotter(["hello machine"]), sound, size)) == 1


def test_forgetting_in_the_middle_of_a_word():
    spotter = Spotter(["hello machine"])
    sound = say("hello machine", ROBOT)
    hear(spotter, sound[: len(sound) // 2])
    spotter.forget()
    assert hear(spotter, sound[len(sound) // 2 :]) == []
    assert len(hear(spotter, sound)) == 1


def test_the_threshold_makes_it_easier_or_harder():
    sound = say("hello machine", "en-us+f3", 130)  # a voice that is hard to understand
    heard = [len(hear(Spotter(["hello machine"], ease=ease), sound)) for ease in (-1, 0.25)]
    assert heard == [0, 1]


def test_words_that_are_not_in_the_dictionary_are_known_by_their_sound():
    spotter = Spotter(["hey trivium"])
    assert len(hear(spotter, say("hey trivium", ROBOT))) == 1
    assert hear(spotter, say(TALK, ROBOT)) == []


def test_without_espeak_only_the_dictionary_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "/nothing")
    Spotter(["hello machine"])
    with pytest.raises(PhraseError, match="no 'trivium'"):
        Spotter(["hey trivium"])


def test_pronunciations_are_those_of_the_dictionary():
    import pocketsphinx

    words = "station,picture,language,water,measure,church,singing,button,thought,father,beautiful,journey,yellow,jarvis"
    told = {word: pronounce(word) for word in words.split(",")}
    decoder = pocketsphinx.Decoder(lm=None, kws=None, loglevel="FATAL")
    assert sum(told[word] == decoder.lookup_word(word) for word in told) >= len(told) - 4


# Speech to text


@pytest.fixture(scope="module")
def recogniser():
    async def load():
        recognisers = Recognisers()
        model = SpeechModel("whisper-tiny", "whisper-tiny")
        first, second = await asyncio.gather(recognisers.acquire(model), recognisers.acquire(model))
        assert first is second
        recognisers.release(model)
        recognisers.release(model)
        return first

    return asyncio.run(load())


def test_a_question_is_understood_the_same_each_time(recogniser):
    sound = say("What is the capital of France?")
    text = recogniser.transcribe(sound, "en")
    assert text.strip(" ?.").lower() == "what is the capital of france"
    assert recogniser.transcribe(sound, "en") == text


def test_the_bundled_model_knows_english_only(recogniser):
    assert recogniser.languages == ["en"]


@pytest.mark.parametrize("sound", [b"", silence(2), noise(2, 30), noise(2, 3000), tone(2, pitch=100)])
def test_what_is_no_speech_has_no_text(recogniser, sound):
    assert recogniser.transcribe(sound, "en") == ""


def test_a_stream_of_speech_becomes_sentences(recogniser):
    told = []
    hearing = Hearing(
        Activity(webrtc_detector()),
        lambda sound: recogniser.transcribe(sound, "en"),
        lambda *heard: told.append(heard),
        EndRules(),
        so_far=True,
    )
    sound = noise(1, 20) + say("Turn on the light, please.") + silence(1) + noise(1, 2000) + silence(2) + say("Thank you.")
    for i in range(0, len(sound), 3200):
        hearing.hear(sound[i : i + 3200])
    hearing.end()
    sentences = [text.strip(".").lower() for heard, text in told if heard is Heard.SENTENCE]
    assert sentences == ["turn on the light, please", "thank you"]
    assert any(heard is Heard.SO_FAR for heard, _ in told)


def test_a_folder_that_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    model = SpeechModel("mine", str(tmp_path))
    with pytest.raises(UnitError, match=r"'mine' cannot be loaded: .* is no Whisper model"):
        asyncio.run(Recognisers().acquire(model))


# Text to speech


def speak(text, language=None, speed=1.0):
    async def main():
        model = SpeechModel("espeak-ng", "espeak-ng")
        return await (await make_speaker(model, language, speed, SpeakerThreads())).speak(text)

    return asyncio.run(main())


def test_espeak_is_understood(recogniser):
    assert shutil.which("espeak-ng")
    sound = speak("What is the capital of France?")
    assert 1.5 < len(sound) / 32000 < 4
    assert recogniser.transcribe(sound, "en").strip(" ?.").lower() == "what is the capital of france"


def test_speed_and_language():
    assert len(speak("one two three", speed=2.0)) < 0.75 * len(speak("one two three"))
    assert speak("你好", "zh") != speak("你好")
    with pytest.raises(UnitError, match="espeak-ng ended with 1"):
        speak("hello", "qq")


@pytest.mark.parametrize("text", ["<speak>&amp;", "[[h@loU]]", "--help", "-v de", "😀" * 100, "a" * 400, "\0", "1" * 100])
def test_any_text_is_spoken(text):
    assert len(speak(text)) % 2 == 0
