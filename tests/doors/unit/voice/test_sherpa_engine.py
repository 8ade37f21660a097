"""The real sherpa-onnx, with a model that hears tones: its words are those of `WORDS`, in the order of their pitch."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
from sherpa_parts import sentencepiece_file
from voice_parts import FakeDevice, Logs, on_bench, packed, silence, wav

from trivium.doors.unit.voice.kws import KwsUnit
from trivium.doors.unit.voice.models import SpeechModels
from trivium.doors.unit.voice.sherpa_spotter import SherpaSpotter
from trivium.errors import ModelLoadError

pytestmark = pytest.mark.voice

WORDS = ["▁LOW", "▁MID", "▁HIGH"]
FIELDS = {"model": "tones", "response_format": "kws.bool", "input": "kws.base64", "kws": "Low, high!"}


@pytest.fixture(scope="module")
def tones():
    from tone_model import tones

    return lambda *words, **fields: tones(*(("low", "mid", "high").index(word) for word in words), **fields)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Makes folders with a model."""
    from tone_model import write_model

    def write(name="tones", **fields):
        folder = write_model(tmp_path_factory.mktemp(name), WORDS, **fields)
        (folder / "bpe.model").write_bytes(sentencepiece_file(WORDS))
        return folder

    return write


@pytest.fixture(scope="module")
def folder(write):
    return write()


def hear(spotter, sound, size=3200):
    return [s for i in range(0, len(sound), size) for s in spotter.hear(sound[i : i + size])]


def phrases(found):
    return [spotted.phrase for spotted in found]


def noise(seconds, level):
    return (np.random.default_rng(1).standard_normal(int(16000 * seconds)) * level).astype("<i2").tobytes()


def test_a_phrase_is_heard_once_each_time_and_when_it_began(folder, tones):
    spotter = SherpaSpotter(str(folder), ["low high", "HIGH MID"])
    sound = silence(1.2) + tones("low", "high") + silence(2.4) + tones("high", "mid") + silence(1.2) + tones("low", "high")
    found = hear(spotter, sound + silence(1.2))
    assert phrases(found) == ["low high", "HIGH MID", "low high"]
    assert [spotted.start for spotted in found] == pytest.approx([1.2, 4.2, 6.0], abs=0.35)


def test_what_is_something_else_wakes_nobody(folder, tones):
    spotter = SherpaSpotter(str(folder), ["low high"])
    for sound in (
        silence(10),
        noise(5, 30),
        noise(5, 3000),
        tones("high", "low"),
        tones("low", "mid"),
        tones("low"),
        tones("high"),
    ):
        assert hear(spotter, sound + silence(1.5)) == []
        spotter.forget()
    assert phrases(hear(spotter, tones("low", "high") + silence(1.5))) == ["low high"]


def test_pieces_of_any_size(folder, tones):
    sound = silence(0.6) + tones("low", "high") + silence(1.5)
    for size in (101, 3200, len(sound)):
        assert len(hear(SherpaSpotter(str(folder), ["low high"]), sound, size)) == 1


def test_a_phrase_at_the_end_of_the_sound_is_told_at_its_end(folder, tones):
    spotter = SherpaSpotter(str(folder), ["low high"])
    for _ in range(2):
        assert hear(spotter, silence(0.9) + tones("low", "high")) == []
        assert phrases(spotter.finish()) == ["low high"]
        assert spotter.finish() == []


def test_what_is_forgotten_is_no_part_of_a_phrase(folder, tones):
    spotter = SherpaSpotter(str(folder), ["low high"])
    for end in (spotter.forget, spotter.finish):
        hear(spotter, silence(0.3) + tones("low"))
        end()
        assert hear(spotter, tones("high") + silence(1.5)) == []


def test_the_threshold(folder, write, tones):
    """The model is sure of what it hears, but not entirely."""
    sound = silence(0.6) + tones("low", "high") + silence(1.5)

    def num_heard(folder, threshold=None):
        return len(hear(SherpaSpotter(str(folder), ["low high"], threshold=threshold), sound))

    assert [num_heard(folder, threshold) for threshold in (None, 0.0, 0.9, 1.0)] == [1, 1, 1, 0]
    ready = write(keywords_txt="▁LOW ▁HIGH #1.0 @LOW_HIGH\n")
    assert [num_heard(ready, threshold) for threshold in (None, 0.9)] == [0, 1]


def test_a_phrase_that_only_the_folders_keywords_have(write, tones):
    folder = write(keywords_txt="▁MID ▁LOW :2.0 #0.2 @你好\n")
    spotter = SherpaSpotter(str(folder), ["你好"])
    assert phrases(hear(spotter, silence(0.6) + tones("mid", "low") + silence(1.5))) == ["你好"]


def test_chinese_by_its_pinyin(tmp_path, tones):
    from tone_model import write_model

    spotter = SherpaSpotter(str(write_model(tmp_path, ["n", "ǐ", "ài"])), ["爱你"])
    assert phrases(hear(spotter, silence(0.6) + tones("high", "low", "mid") + silence(1.5))) == ["爱你"]


# What the library would end the whole process for


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metadata": {"model_type": "zipformer2"}}, "'encoder_dims' does not exist in the metadata"),
        ({"metadata": {"model_type": "other"}}, "sherpa-onnx cannot use it: "),
        ({"metadata": {}}, "sherpa-onnx cannot use it: "),
    ],
)
def test_a_model_of_another_kind(write, fields, words):
    with pytest.raises(ModelLoadError, match=words):
        SherpaSpotter(str(write(**fields)), ["low high"])


def test_parts_that_are_no_models_or_not_these(write):
    for part in ("encoder", "decoder", "joiner"):
        for data in (b"", b"no model"):
            folder = write()
            next(folder.glob(f"{part}*")).write_bytes(data)
            with pytest.raises(ModelLoadError, match="sherpa-onnx cannot use it"):
                SherpaSpotter(str(folder), ["low high"])
    folder = write()
    shutil.copy(next(folder.glob("decoder*")), next(folder.glob("joiner*")))
    with pytest.raises(ModelLoadError, match="sherpa-onnx cannot use it"):
        SherpaSpotter(str(folder), ["low high"])


# The unit


def add_unit(bench, folder):
    return bench.add(KwsUnit(bench.bus, 8, SpeechModels({"tones": str(folder)}), FakeDevice()))


@on_bench
async def test_the_unit(bench, folder, tones):
    unit = add_unit(bench, folder)
    task = await bench.set_up(unit, **FIELDS | {"keywords_threshold": 0.5, "response_format": "kws.json"})
    sound = silence(0.6) + tones("low", "high")
    for i in range(0, len(sound), 3200):
        bench.send(unit, task, "inference", packed(sound[i : i + 3200]), kind="kws.base64", request_id="stream")
    bench.send(unit, task, "inference", packed(silence(1.5)), kind="kws.base64", request_id="stream")
    (reply,) = await bench.replies(1)
    assert reply["data"].startswith('{"keyword":"Low, high!","start_time":')
    bench.send(unit, task, "inference", packed(wav(sound)), kind="kws.wav.base64", request_id="file")
    assert (await bench.replies(1))[0]["request_id"] == "file"
    (model,) = [told for told in unit.descriptors() if told["mode"] == "tones"]
    assert model["capabilities"] == ["Keyword_spotting"]


@pytest.mark.parametrize(
    ("kws", "words"),
    [
        ("Low, loud", "the wake word 'Low, loud' cannot be written in the model's tokens: it has no '▁LOUD'"),
        ("你好", "the wake word '你好' cannot be written in the model's tokens"),
        ("!", "must have letters"),
    ],
)
@on_bench
async def test_a_phrase_that_the_model_cannot_know(bench, folder, kws, words):
    unit = add_unit(bench, folder)
    reply = await bench.ask(unit, "kws", "setup", {"enoutput": True, **FIELDS, "kws": kws})
    assert (reply["work_id"], reply["error"]["code"]) == ("kws", -5)
    assert words in reply["error"]["message"]
    assert not unit.workers


@on_bench
async def test_a_folder_that_lacks_a_file(bench, write):
    folder = write()
    next(folder.glob("joiner*")).unlink()
    unit = add_unit(bench, folder)
    reply = await bench.ask(unit, "kws", "setup", {"enoutput": True, **FIELDS})
    assert reply["error"]["code"] == -5
    assert "'tones' cannot be loaded: the folder has no joiner*.onnx" in reply["error"]["message"]


@on_bench
async def test_without_the_package(bench, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sherpa_onnx", None)
    logs = Logs()
    unit = add_unit(bench, folder)
    reply = await bench.ask(unit, "kws", "setup", {"enoutput": True, **FIELDS})
    assert (reply["work_id"], reply["error"]["code"]) == ("kws", -9)
    assert reply["error"]["message"].startswith("unit call false")
    assert logs.has("'tones' needs sherpa-onnx: `pip install 'trivium[sherpa]'`")
