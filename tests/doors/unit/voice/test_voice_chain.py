"""The whole chain on real sound, over TCP: a wake word and a question are spoken, heard, answered, and the answer is spoken."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from test_voice_engines import ROBOT, say
from unit_parts import serving_unit, wait_until
from voice_parts import packed, silence, wav

from trivium.config import EngineConfig
from trivium.engine.native_engine import NativeEngine

pytestmark = pytest.mark.voice

FORMATS = {"kws": "kws.bool", "asr": "asr.utf-8.stream", "llm": "llm.utf-8.stream", "tts": "tts.base64.stream"}
MODELS = {  # as devices name them
    "kws": "sherpa-onnx-kws-zipformer-gigaspeech-3.3M-2024-01-01",
    "asr": "sherpa-ncnn-streaming-zipformer-20M-2023-02-17",
    "llm": "qwen2.5-0.5B-prefill-20e",
    "tts": "single_speaker_english_fast",
}


@pytest.fixture(scope="module")
def engine(smollm2):
    with NativeEngine.load(EngineConfig(model=smollm2, max_model_len=2048, num_kv_blocks=128)) as engine:
        yield engine


@pytest.fixture
def door(engine, smollm2):
    with serving_unit(engine, unit_models=[f"{MODELS['llm']}={smollm2}"]) as door:
        yield door


class Device:
    """A device with a microphone: what is said near it goes to kws and asr at the speed at which it is said."""

    def __init__(self, client):
        self.client = client
        self.frames = []  # with the time at which each came
        self.begun = time.monotonic()
        self._thread = threading.Thread(target=self._read)

    def set_up(self, unit, *inputs, **fields):
        return self.client.set_up(unit, model=MODELS[unit], response_format=FORMATS[unit], input=list(inputs), **fields)

    def start(self):
        self._thread.start()

    def _read(self):
        while (frame := self.client.receive())["request_id"] != "end":
            self.frames.append((time.monotonic(), frame))

    def hear(self, sound, *tasks):
        began = time.monotonic()
        for i in range(0, len(sound), 3200):
            for task in tasks:
                kind = f"{task.partition('.')[0]}.base64"
                self.client.send("sound", task, "inference", object=kind, data=packed(sound[i : i + 3200]))
            time.sleep(max(0.0, began + (i + 3200) / 32000 - time.monotonic()))

    def of(self, task, since=0.0):
        return [(at, frame["data"]) for at, frame in list(self.frames) if frame["work_id"] == task and at >= since]

    def wait_for(self, task, condition, since=0.0):
        """The time of the first frame of a task for whose data the condition holds."""
        wait_until(lambda: any(condition(data) for _, data in self.of(task, since)), 60)
        return next(at for at, data in self.of(task, since) if condition(data))

    def end(self):
        self.client.send("end")
        self._thread.join(30)
        assert not self._thread.is_alive()


def finished(data):
    return isinstance(data, dict) and data["finish"]


def test_a_conversation(door, capsys):
    wake = say("hello machine", ROBOT)
    with door.client() as client:
        device = Device(client)
        kws = device.set_up("kws", "kws.base64", kws="HELLO MACHINE")
        asr = device.set_up("asr", "asr.base64", kws)
        llm = device.set_up("llm", "llm.utf-8", asr, kws, temperature=0, max_token_len=40)
        story = device.set_up("llm", "llm.utf-8", kws, temperature=0, max_token_len=1900)
        tts = device.set_up("tts", "tts.utf-8", llm, story, kws)
        assert [kws, asr, llm, story, tts] == ["kws.1000", "asr.1001", "llm.1002", "llm.1003", "tts.1004"]
        device.start()

        # Asleep, it hears nothing.
        device.hear(say("What is the time?"), kws, asr)
        assert device.of(asr) == []

        # Woken, it hears a question, answers it, and says the answer.
        device.hear(wake, kws, asr)
        woken = device.wait_for(kws, lambda data: data is True)
        question = say("What is the capital of France?")
        loud = np.flatnonzero(np.abs(np.frombuffer(question, "<i2").astype(int)) > 300)
        said = time.monotonic() + loud[-1] / 16000
        device.hear(question + silence(1.5), kws, asr)
        heard = device.wait_for(asr, finished)
        assert device.of(asr)[-1][1]["delta"].lower().startswith("what is the capital of france")
        assert device.of(asr)[-1][1]["delta"].endswith(".")
        first_text = device.wait_for(llm, lambda data: data["delta"])
        first_sound = device.wait_for(tts, lambda data: data["delta"])
        device.wait_for(tts, finished)
        answer = "".join(data["delta"] for _, data in device.of(llm))
        assert "Paris" in answer
        assert len(device.of(kws)) == 1

        # A wake word in the middle of a long answer ends it, and what is said of it.
        asked = time.monotonic()
        chunk = {"delta": "Tell me a very long story about the sea.", "index": 0, "finish": True}
        client.send("story", story, "inference", object="llm.utf-8.stream", data=chunk)
        device.wait_for(tts, lambda data: data["delta"], asked)
        device.hear(wake, kws, asr)
        again = device.wait_for(kws, lambda data: data is True, asked)
        device.wait_for(story, finished, asked)
        silent = device.wait_for(tts, finished, asked)
        num_tokens = sum(len(data["delta"].split()) for _, data in device.of(story, asked))
        assert num_tokens < 1200  # of the 1900 it could have

        # And it hears the next question.
        device.hear(say("Thank you.") + silence(1.5), kws, asr)
        device.wait_for(asr, finished, again)
        device.wait_for(tts, finished, silent + 0.001)
        device.end()
        assert all(frame["error"]["code"] == 0 for _, frame in device.frames)

    with capsys.disabled():
        print(
            f"\nfrom the wake word to the first sound of the answer {first_sound - woken:.2f} s: "
            f"{said - woken:.2f} s to the end of the question, then {heard - said:.2f} s until it was understood, of them "
            f"1.2 s of silence, {first_text - heard:.2f} s to the first words, {first_sound - first_text:.2f} s to their sound"
        )


def test_each_unit_by_itself_as_devices_use_it(door):
    with door.client() as client:
        asr = client.set_up("asr", model="whisper-tiny", response_format="asr.utf-8", input="asr.wav")
        whisper = client.set_up(
            "whisper", model="whisper-tiny", response_format="asr.utf-8", input="whisper.wav", language="en"
        )
        tts = client.set_up("melotts", model="melotts-en-default", response_format="tts.base64", input="tts.utf-8.stream")
        kws = client.set_up("kws", model=MODELS["kws"], response_format="kws.bool", input="kws.wav", kws=["OPEN SESAME"])

        file = packed(wav(say("Turn on the light, please.")))
        for task in (asr, whisper):
            heard = client.ask("i", task, "inference", object=f"{task.partition('.')[0]}.wav.base64", data=file)
            assert heard["data"].lower().strip(".,") == "turn on the light, please"
        spoken = client.ask("i", tts, "inference", object="tts.utf-8.stream", data={"delta": "Hi.", "index": 0, "finish": True})
        assert len(spoken["data"]) > 10_000
        heard = client.ask("i", kws, "inference", object="kws.base64", data=packed(say("open sesame", ROBOT)))
        assert heard["data"] is True
        refused = client.ask(
            "i", "kws", "setup", data={"model": MODELS["kws"], "kws": "你好", "response_format": "b", "enoutput": True}
        )
        assert "is not English" in refused["error"]["message"]
        modes = {model["type"] for model in client.ask("l", "sys", "lsmode")["data"]}
        assert modes == {"llm", "kws", "asr", "tts"}
